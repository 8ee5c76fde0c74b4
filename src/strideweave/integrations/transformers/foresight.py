"""Which experts the next layer will want: its own router is asked early, with what this layer got.

A layer adds little to what runs through the model, so that the router of the next one mostly chooses the same for the
input of this one. What it says is a guess: it decides what is read ahead, and never what is computed.
"""

from __future__ import annotations

from typing import Any

import torch

from strideweave.carriers.tiled_evictable import Prefetcher, TiledEvictable
from strideweave.integrations.transformers import _compat

_MOST_SHARE = 0.5  # of the experts of a layer; a step that wants more reads nearly all of them anyway


class Foresight:
    """Reads the experts of the next layer ahead, as long as that is of use."""

    def __init__(self, model: torch.nn.Module, model_type: str, carrier: TiledEvictable, top_k: int) -> None:
        _, self._experts, _ = carrier.grid_shape
        self._routers = [
            _compat.router_weight(model, name, self._experts) for name, _ in _compat.experts_modules(model, model_type)
        ]
        self._top_k = top_k
        self.prefetcher = Prefetcher(carrier, max_in_flight=2 * top_k)

    def look_ahead(self, layer: int, hidden_states: torch.Tensor) -> None:
        """Begin to bring what the layer after this one probably wants, the most wanted first."""
        follower = layer + 1
        router = self._routers[follower] if follower < len(self._routers) else None
        tokens = hidden_states.shape[0]
        if router is None or tokens * self._top_k > _MOST_SHARE * self._experts:
            return
        if self.prefetcher.is_pausing:
            self.prefetcher.suggest([])
            return
        with torch.no_grad():
            scores = torch.nn.functional.linear(hidden_states.to(router.dtype), router)
            best = scores.topk(min(self._top_k, self._experts), dim=-1).indices
            counts = torch.bincount(best.flatten(), minlength=self._experts)
            wanted = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
        self.prefetcher.suggest((follower, expert, 0) for expert in wanted.tolist())

    def __repr__(self) -> str:
        return f"<Foresight by {self.prefetcher!r}>"


def foresight_of(model: Any, model_type: str, carrier: TiledEvictable, top_k: int) -> Foresight | None:
    """Foresight for a model whose routers are known; None for one of which no router is."""
    made = Foresight(model, model_type, carrier, top_k)
    return made if any(router is not None for router in made._routers) else None
