"""What a model needs before any of it is read: from headers and the configuration only."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from strideweave.carriers.tiled_evictable.budget import format_nbytes, parse_nbytes
from strideweave.checkpoint import Checkpoint
from strideweave.integrations.transformers import _compat
from strideweave.integrations.transformers.sources import ExpertSources, require_supported, resolve
from strideweave.io import available_nbytes

_HEADROOM = 0.1


class PlanRefused(ValueError):
    """The model cannot run inside what is there; the message has the numbers."""


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """The numbers of a model under a budget. Units: bytes, unless a name says otherwise."""

    path: str
    model_type: str
    shards: int
    layers: int
    """Layers that have experts."""
    experts: int
    """Experts of each such layer."""
    top_k: int
    """Experts that a token is routed to in each layer."""
    dtype: str
    dense_nbytes: int
    """What stays in memory: everything but the experts."""
    expert_nbytes: int
    """What stays on disk: all experts."""
    tile_nbytes: int
    """One expert of one layer, all its matrices."""
    budget_nbytes: int
    """What experts may take in memory."""
    tiles_that_fit: int
    nbytes_per_token: int
    """What one decoded token needs of the experts; read from disk unless it is resident."""
    peak_nbytes: int
    """Dense part, budget and two tiles: the most that weights take."""
    available_nbytes: int
    """What this machine (or control group) has left."""

    @property
    def resident_fraction(self) -> float:
        """The part of all experts that the budget holds."""
        return self.tiles_that_fit / (self.layers * self.experts)


def plan(path: str | os.PathLike[str], budget: int | str | None = None) -> ExpertPlan:
    """The numbers of a checkpoint folder under a budget (a quarter of the experts by default); reads headers only.

    Errors: CheckpointError for a folder that is no whole checkpoint; UnsupportedModel for another family; PlanRefused
    when the budget is below one expert or the dense part cannot fit in the memory that is there.
    """
    checkpoint = Checkpoint.open(path)
    config = _compat.load_config(str(checkpoint.path))
    require_supported(config, str(path))
    return plan_of(checkpoint, resolve(checkpoint, config), budget)


def plan_of(checkpoint: Checkpoint, sources: ExpertSources, budget: int | str | None) -> ExpertPlan:
    """The same for a checkpoint whose sources are known."""
    tile, experts_nbytes = sources.tile_nbytes, sources.expert_nbytes
    budget_nbytes = max(tile, experts_nbytes // 4) if budget is None else parse_nbytes(budget)
    if budget_nbytes < tile:
        raise PlanRefused(
            f"cannot run {str(checkpoint.path)!r} with a budget of {format_nbytes(budget_nbytes)} ({budget_nbytes} "
            f"bytes): one expert is {format_nbytes(tile)} ({tile} bytes). The budget must hold at least one expert. "
            f"Raise it to {tile} bytes or more."
        )
    fit = min(budget_nbytes // tile, len(sources.layers) * sources.experts)
    available = available_nbytes()
    numbers = ExpertPlan(
        path=str(checkpoint.path),
        model_type=sources.model_type,
        shards=len(checkpoint.shards),
        layers=len(sources.layers),
        experts=sources.experts,
        top_k=sources.top_k,
        dtype=sources.dtype.name,
        dense_nbytes=sources.dense_nbytes,
        expert_nbytes=experts_nbytes,
        tile_nbytes=tile,
        budget_nbytes=budget_nbytes,
        tiles_that_fit=fit,
        nbytes_per_token=len(sources.layers) * sources.top_k * tile,
        peak_nbytes=sources.dense_nbytes + fit * tile + 2 * tile,
        available_nbytes=available,
    )
    if sources.dense_nbytes + 3 * tile > available:
        raise PlanRefused(
            f"cannot run {str(checkpoint.path)!r} here: its dense part is {format_nbytes(sources.dense_nbytes)}, "
            f"three tiles are {format_nbytes(3 * tile)}, and {format_nbytes(available)} of memory are available. The "
            "dense part stays in memory whatever the budget. Free memory, or use a larger machine."
        )
    if numbers.peak_nbytes > available:
        raise PlanRefused(
            f"cannot run {str(checkpoint.path)!r} with a budget of {format_nbytes(budget_nbytes)}: dense part "
            f"{format_nbytes(sources.dense_nbytes)} + experts {format_nbytes(fit * tile)} + two tiles come to "
            f"{format_nbytes(numbers.peak_nbytes)}, and {format_nbytes(available)} are available. Lower the budget to "
            f"{format_nbytes(available - sources.dense_nbytes - 2 * tile)} or less."
        )
    if numbers.peak_nbytes > (1 - _HEADROOM) * available:
        warnings.warn(
            f"a budget of {format_nbytes(budget_nbytes)} leaves less than {_HEADROOM:.0%} of the available memory "
            f"({format_nbytes(available)}) free: the system may start to swap, and a smaller budget can be faster.",
            stacklevel=3,
        )
    return numbers
