"""The experts of a model as tiles: the store that all layers share, and the function that computes with it."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import torch

from strideweave.carriers import CPU, CheckpointFile
from strideweave.carriers.tiled_evictable import ResidencyPolicy, Statistics, TiledEvictable, TileSet
from strideweave.integrations.transformers.compute import run_expert
from strideweave.integrations.transformers.foresight import Foresight
from strideweave.integrations.transformers.plan import ExpertPlan
from strideweave.integrations.transformers.sources import ExpertSources
from strideweave.io import watching
from strideweave.layout import Layout
from strideweave.tensor import Tensor

Route: TypeAlias = tuple[tuple[int, int], ...]
_ANSWERED_AT_ONCE = 16  # tokens in one step; more of them are a prompt


class ExpertStore:
    """All experts of one model in one tiled carrier: grid (layers, experts, 1), one tile an expert, one budget.

    `model.strideweave` is the store. Closing it ends the use of the model.
    """

    def __init__(self, sources: ExpertSources, plan: ExpertPlan, policy: ResidencyPolicy | None = None) -> None:
        shape = (len(sources.layers), sources.experts, sources.tile_elems)
        layout = Layout.row_major(*shape)
        self.plan = plan
        self.layers = sources.layers
        self.parts = sources.parts
        self.carrier = TiledEvictable(
            CPU(0, dtype=sources.dtype),
            CheckpointFile(sources.pieces, dtype=sources.dtype),
            (len(sources.layers), sources.experts, 1),
            (1, 1, sources.tile_elems),
            layout=layout,
            budget=plan.budget_nbytes,
            residency_policy=policy,
        )
        self.tensor = Tensor(self.carrier, 0, layout)
        self.foresight: Foresight | None = None
        """What reads ahead for the next layer; None when nothing does."""
        self.subject = self.carrier._engine.subject
        self.subject.name, self.subject.noun = "experts", "expert"
        self.subject.groups = [f"layer {number}" for number in map(_number, sources.layers)]
        self._routes: list[Route] | None = None

    def statistics(self) -> Statistics:
        """What is resident, what was found and what was read."""
        return self.carrier.statistics()

    @contextmanager
    def record_routes(self) -> Iterator[list[Route]]:
        """The experts that every layer of every step asks for, in the order of use, while the block lasts."""
        routes: list[Route] = []
        self._routes = routes
        try:
            yield routes
        finally:
            self._routes = None

    def residency_map(self) -> list[list[bool]]:
        """For every layer, which of its experts are in memory."""
        resident = set(self.carrier.primary_tiles.coordinates)
        layers, experts, _ = self.carrier.grid_shape
        return [[(layer, expert, 0) in resident for expert in range(experts)] for layer in range(layers)]

    def views(
        self, layer: int, experts: list[int], *, passing: bool = False
    ) -> Generator[tuple[int, dict[str, torch.Tensor]], None, None]:
        """Each expert once with its matrices, valid until the next: those in memory first, the others as they land.

        Those of a prompt are `passing`: they do not take the places of what answers use.
        """
        tiles = TileSet([(layer, expert, 0) for expert in experts])
        used: list[tuple[int, int]] = []
        with self.carrier.stream(tiles, passing=passing) as stream:
            for (_, expert, _), view in stream:
                used.append((layer, expert))
                flat = view.view(-1)
                yield (
                    expert,
                    {
                        part.name: flat[part.offset_elems : part.offset_elems + math.prod(part.shape)].view(part.shape)
                        for part in self.parts
                    },
                )
        if self._routes is not None:
            self._routes.append(tuple(used))

    def computing(self, layer: int, expert: int) -> watching.Event | watching.Nothing:
        """A block of one expert's arithmetic, for whoever watches."""
        return watching.event("compute", "", self.subject, layer + len(self.layers) * expert)

    def close(self) -> None:
        """Let go of the memory and the files; again is harmless. Errors: RuntimeError while the model is running."""
        self.carrier.release()

    def __deepcopy__(self, memo: dict[int, object]) -> ExpertStore:
        return self  # a copied model shares the experts: they are read-only

    def __repr__(self) -> str:
        return f"<ExpertStore of {len(self.layers)} layers: {self.carrier!r}>"


def _number(layer: str) -> str:
    """The number in the name of a layer's module."""
    return next((part for part in layer.split(".") if part.isdecimal()), layer)


class LayerExperts:
    """One layer's share of a store: what an experts module holds in place of its parameters."""

    def __init__(self, store: ExpertStore, layer: int) -> None:
        self.store = store
        self.layer = layer

    def __deepcopy__(self, memo: dict[int, object]) -> LayerExperts:
        return self  # a copied model shares the experts: they are read-only


def experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The sum over each token's experts of weight x expert(token), bit-equal to transformers' eager experts.

    Shapes: hidden_states (tokens, hidden), top_k_index and top_k_weights (tokens, k); the result (tokens, hidden).
    Errors: RuntimeError when the module was not loaded by StrideWeave, when the store is closed, or on backward.
    """
    experts = getattr(module, "_strideweave", None)
    if experts is None:
        raise RuntimeError(
            "cannot compute the experts of this layer: experts_implementation is 'strideweave' and the layer holds "
            "no tiles. Only models from strideweave.integrations.transformers.from_pretrained do. Load it that way, "
            "or set another implementation."
        )
    result: torch.Tensor = _ForwardOnly.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        hidden_states, top_k_index, top_k_weights, module, experts
    )
    return result


class _ForwardOnly(torch.autograd.Function):
    """A forward whose weights are views of slots: by the time of a backward they may hold other experts."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
        module: Any,
        experts: LayerExperts,
    ) -> torch.Tensor:
        with watching.event("operation", f"experts of {experts.store.subject.groups[experts.layer]}"):
            return _compute(module, experts, hidden_states, top_k_index, top_k_weights)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError(
            "cannot run backward through experts that live in tiles: this version computes forward only. The tiles "
            "of the forward pass may have left memory. Load the model with transformers to train it."
        )


def _compute(
    module: Any,
    experts: LayerExperts,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    final = torch.zeros_like(hidden_states)
    # The order of rows within an expert is eager's: by place in the top k, then by token.
    flat = top_k_index.t().reshape(-1)
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=module.num_experts).tolist()
    # An index of num_experts marks a token that another rank computes.
    routed = [expert for expert in range(module.num_experts) if counts[expert]]
    sizes, tokens = [n for n in counts if n], hidden_states.shape[0]
    token_of = dict(zip(routed, (order % tokens).split(sizes), strict=False))  # type: ignore[no-untyped-call]
    place_of = dict(zip(routed, (order // tokens).split(sizes), strict=False))  # type: ignore[no-untyped-call]
    # Experts come in the order in which they land; sums are taken in ascending order, as eager does.
    waiting: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    ascending = iter(routed)
    due = next(ascending, None)
    is_scan = tokens > _ANSWERED_AT_ONCE and 2 * len(routed) > module.num_experts
    foresight = experts.store.foresight
    with closing(experts.store.views(experts.layer, routed, passing=is_scan)) as views:
        for expert, weights in views:
            if foresight is not None:  # once, behind all that this layer waits for
                foresight.look_ahead(experts.layer, hidden_states)
                foresight = None
            with experts.store.computing(experts.layer, expert):
                token, place = token_of[expert], place_of[expert]
                state = run_expert(module, weights, hidden_states[token]) * top_k_weights[token, place, None]
                waiting[expert] = (token, state.to(final.dtype))
                while due in waiting:
                    final.index_add_(0, *waiting.pop(due))
                    due = next(ascending, None)
    return final
