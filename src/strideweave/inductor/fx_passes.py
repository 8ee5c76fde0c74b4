"""What is done to the FX graph before it is lowered: every operation becomes a buffer of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from strideweave.inductor.names import names_of_inputs
from strideweave.spyre import config


class SpyreGraphPass(CustomGraphModulePass):
    """Marks every operation of the graph to be realized: one ComputedBuffer for each."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Mark them."""
        for node in gm.graph.nodes:
            value = node.meta.get("val")
            if node.op == "call_function" and isinstance(value, torch.Tensor) and value.device.type == "spyre":
                node.meta["inductor_realize_to_strides"] = True

    def uuid(self) -> str:
        """What compiled graphs are kept under: our sources, and the switches that change what they do."""
        return f"{sources()}-{config.get_hash().hex()}-{_digest.get()}"


_digest: ContextVar[str] = ContextVar("digest_of_hints", default="")


@contextmanager
def hints_in_key(gm: Any) -> Iterator[None]:
    """While this lasts, what is compiled is kept under the hints of this graph too: its code does not show them."""
    nodes = getattr(getattr(gm, "graph", None), "nodes", ())
    hints = [(node.name, node.meta["custom"]) for node in nodes if node.meta.get("custom")]
    text = repr((hints, names_of_inputs()))
    token = _digest.set(hashlib.sha256(text.encode()).hexdigest() if hints or any(names_of_inputs()) else "")
    try:
        yield
    finally:
        _digest.reset(token)


@cache
def sources() -> str:
    """A digest of the compiler's and the card's sources."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in ("inductor", "spyre"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
