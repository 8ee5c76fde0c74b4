"""Everything that leans on transformers' semi-private parts, in one place.

Source: transformers 5.4 and later: `core_model_loading` (renamings, converters), `conversion_mapping`, the experts
interface. A test runs every function here over the installed version's supported families.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

EXPERTS_NAME = "strideweave"

FAMILIES = {
    "deepseek_v3": "DeepseekV3Experts",
    "glm4_moe": "Glm4MoeExperts",
    "gpt_oss": "GptOssExperts",
    "granitemoe": "GraniteMoeExperts",
    "minimax_m2": "MiniMaxM2Experts",
    "mixtral": "MixtralExperts",
    "olmoe": "OlmoeExperts",
    "phimoe": "PhimoeExperts",
    "qwen2_moe": "Qwen2MoeExperts",
    "qwen3_moe": "Qwen3MoeExperts",
}
"""model_type -> the class of its experts, in the family's own modeling module."""

PARAMETERS = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
"""The fused parameters that an experts module may have, an expert's after the other, in the order of a tile."""

_class_lock = threading.Lock()  # guards the patched __init__ of the experts classes


def load_config(path: str, **kwargs: Any) -> Any:
    """The model's configuration."""
    return AutoConfig.from_pretrained(path, **kwargs)


def load_model(config: Any, path: str, state: Mapping[str, Any], **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """The ordinary from_pretrained of the model's class, given a state; and what it reports as missing or mismatched.

    transformers takes a state or a path, not both, so what it would look up in the folder is handed over.
    """
    cls = type(skeleton(config))
    model, report = cls.from_pretrained(
        None,
        config=config,
        state_dict=state,
        generation_config=_generation_config(config, path),
        output_loading_info=True,
        **kwargs,
    )
    model.config.name_or_path = model.name_or_path = path
    return model, report


def _generation_config(config: Any, path: str) -> GenerationConfig:
    try:
        return GenerationConfig.from_pretrained(path)
    except OSError:  # no such file: what the model's configuration says
        return GenerationConfig.from_model_config(config)


def skeleton(config: Any) -> Any:
    """The model on the meta device: names and shapes, no storage."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def experts_class(model_type: str) -> type[torch.nn.Module]:
    """The class of a family's experts module."""
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    cls: type[torch.nn.Module] = getattr(module, FAMILIES[model_type])
    return cls


def expert_parameters(module: torch.nn.Module) -> tuple[str, ...]:
    """The fused parameters of an experts module, in the order in which a tile holds them."""
    return tuple(name for name in PARAMETERS if name in module._parameters)


def experts_modules(model: torch.nn.Module, model_type: str) -> list[tuple[str, Any]]:
    """The experts modules with their names, in layer order."""
    cls = experts_class(model_type)
    return [(name, module) for name, module in model.named_modules() if isinstance(module, cls)]


def router_weight(model: Any, experts_name: str, experts: int) -> torch.Tensor | None:
    """The (experts, hidden) matrix by which the block around an experts module scores experts; None if it has none."""
    block = model.get_submodule(experts_name.rpartition(".")[0])
    router = getattr(block, "gate", None) or getattr(block, "router", None)
    weight = getattr(router, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.shape[0] == experts and not weight.is_meta:
        return weight
    return None


def top_k(config: Any) -> int:
    """How many experts a token is routed to in each layer."""
    return int(config.num_experts_per_tok)


def register(function: Callable[..., torch.Tensor]) -> None:
    """Make the experts function known under our name; transformers looks it up at every call."""
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, function)


@contextmanager
def without_expert_parameters(model_type: str) -> Iterator[None]:
    """While it lasts, experts modules are made without their fused parameters. The class stays the same object."""
    cls = experts_class(model_type)
    with _class_lock:
        original = cls.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            with torch.device("meta"):
                original(self, *args, **kwargs)
            for name in expert_parameters(self):
                delattr(self, name)
            # Nothing is left that transformers should initialise.
            self._is_hf_initialized = True

        cls.__init__ = __init__  # type: ignore[method-assign]
        try:
            yield
        finally:
            cls.__init__ = original  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a checkpoint tensor goes."""

    name: str
    """The parameter of the model."""
    expert: int | None
    """The expert that it belongs to; None for a dense or an already fused tensor."""
    rank: int
    """Its place among the tensors that are laid end to end for this expert."""


class Renamer:
    """Tells where each checkpoint tensor goes, by transformers' own renamings and converters."""

    def __init__(self, model: Any) -> None:
        mapping = get_model_conversion_mapping(model)
        self._renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
        self._converters = [m for m in mapping if isinstance(m, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._state = model.state_dict()
        self._ranks = {
            pattern: rank for converter in self._converters for rank, pattern in enumerate(self._end_to_end(converter))
        }
        self._experts = {p: re.compile(re.escape(p).replace(r"\*", r"(\d+)")) for p in self._ranks}

    def target(self, key: str) -> Target:
        """Where the tensor of a checkpoint key goes."""
        name, pattern = rename_source_key(key, self._renamings, self._converters, self._prefix, self._state)
        if pattern is None:
            return Target(name, None, 0)
        match = self._experts[pattern].search(key) if pattern in self._experts else None
        if match is None:
            raise ValueError(
                f"cannot place checkpoint tensor {key!r}: the installed transformers converts {pattern!r} in a way "
                "that is no joining of whole tensors. Only whole tensors laid end to end can be read in place. "
                "Report the model family."
            )
        return Target(name, int(match[1]), self._ranks[pattern])

    @staticmethod
    def _end_to_end(converter: WeightConverter) -> list[str]:
        """The source patterns in the order in which the converter lays one expert's tensors end to end.

        The operations themselves say so: they are run on a small numbered matrix per source. An empty list means that
        the result is no joining of whole tensors.
        """
        probes = {
            pattern: torch.arange(6, dtype=torch.int64).reshape(2, 3) + 100 * k
            for k, pattern in enumerate(converter.source_patterns)
        }
        values: dict[str, Any] = {pattern: [probe] for pattern, probe in probes.items()}
        try:
            for operation in converter.operations:
                values = operation.convert(
                    values,
                    source_patterns=converter.source_patterns,
                    target_patterns=converter.target_patterns,
                )
            (joined,) = values.values()
        except Exception:
            # An operation that needs the whole model (a config, a quantizer) is no plain joining.
            return []
        flat = joined.reshape(-1)
        order = [p for start in flat[::6].tolist() for p, probe in probes.items() if int(probe[0, 0]) == start]
        whole = torch.cat([probes[p].reshape(-1) for p in order]) if order else flat[:0]
        return order if torch.equal(whole, flat) else []
