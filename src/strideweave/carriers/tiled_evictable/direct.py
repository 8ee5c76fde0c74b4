"""Direct operations: a tiled operand means its whole Tensor, which streams through tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.extension import PreparedComposite, ProviderResult
from strideweave.carriers.extension.executors import CompositeExecutor
from strideweave.carriers.tiled_evictable import transitions
from strideweave.carriers.tiled_evictable.blocks import (
    Region,
    Source,
    Symbols,
    Tiled,
    Whole,
    blocks,
    computing,
    contract,
)
from strideweave.carriers.tiled_evictable.engine import Pin
from strideweave.carriers.tiled_evictable.policy import Purpose
from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSet
from strideweave.carriers.tiled_evictable.tiles_as_modes import in_mode_dims, region_of
from strideweave.carriers.tiled_evictable.walking import Walk
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.carriers.whole import write_all
from strideweave.io import watching
from strideweave.layout import Layout
from strideweave.operation.call import ProviderContractError, ResolvedInvocation
from strideweave.tensor import Tensor, from_torch
from strideweave.tensor.copying import strided, values_of
from strideweave.tensor.grad_mode import no_grad

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable

NAMES: Final = ("add", "elementwise_mul", "mul", "relu", "reduce_sum", "matmul")
"""The operations that take a tiled operand."""

_NARROW: Final = frozenset({torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2})


def is_tiled(operand: object) -> bool:
    """Whether an operand is a Tensor over a tiled carrier."""
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable

    return isinstance(operand, Tensor) and isinstance(operand.carrier, TiledEvictable)


def carriers_of(operands: Sequence[Any]) -> list[TiledEvictable]:
    """The tiled carriers among operands, each once, in their order."""
    found: dict[int, TiledEvictable] = {}
    for operand in operands:
        if is_tiled(operand):
            found.setdefault(id(operand.carrier), operand.carrier)
    return list(found.values())


def prepare(invocation: ResolvedInvocation) -> PreparedComposite:
    """Check every operand, and ask the policies; nothing has moved yet.

    Errors: ValueError for a Tensor that is not tile-footprint compatible; RuntimeError for an invalid tile or a pending
    conflict; TypeError for operands of two compute carriers; what a policy raises.
    """
    tiled = carriers_of(invocation.operands)
    classes = {type(carrier.primary) for carrier in tiled}
    classes |= {type(o.carrier) for o in invocation.operands if isinstance(o, Tensor) and not is_tiled(o)}
    if len(classes) > 1:
        names = " and ".join(sorted(cls.__name__ for cls in classes))
        raise TypeError(
            f"cannot run {invocation.name} on tiles of {names}: Tensor backing carriers must match, in their compute "
            "carrier too. Move or materialize one of the operands."
        )
    for operand in invocation.operands:
        if is_tiled(operand):
            operand.carrier._geometry.require_compatible(operand.offset, operand.layout)
    plans = _asked.get()
    if plans is None:
        plans = ask_policies(invocation)
    return PreparedComposite(lambda: _run(invocation, tiled, plans))


_asked: ContextVar[list[ResidencyPlan] | None] = ContextVar("plans_of_policies", default=None)


class DirectExecutor(CompositeExecutor):
    """Runs direct operations. Policies are asked before operands are shielded: they are the user's, and may do much.

    What fails on the way is raised as it is, and blames no provider.
    """

    def execute(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        """The dense results. Errors: as `prepare`, and those of the tiers."""
        for carrier in carriers_of(invocation.operands):
            carrier.require_operation_plan(invocation.plan)
        plans = ask_policies(invocation)
        token = _asked.set(plans)
        try:
            return super().execute(invocation)
        except ProviderContractError as error:
            if isinstance(error.__cause__, Exception):
                raise error.__cause__ from None
            raise
        finally:
            _asked.reset(token)


def ask_policies(invocation: ResolvedInvocation) -> list[ResidencyPlan]:
    """The plan of every tiled carrier's policy, asked once each, when all that could be wrong before is not."""
    tiled = carriers_of(invocation.operands)
    for operand in invocation.operands:
        if is_tiled(operand):
            operand.carrier._geometry.require_compatible(operand.offset, operand.layout)
    return plans_for(tiled, invocation.name, "operation")


def plans_for(carriers: Sequence[TiledEvictable], label: str, purpose: Purpose) -> list[ResidencyPlan]:
    """The plan of every carrier's policy for all of its tiles; what is in the way of any is raised first."""
    for carrier in carriers:
        _require_ready(carrier, ResidencyPlan(), label)
    plans = [carrier._plan(every_tile(carrier), purpose) for carrier in carriers]
    for carrier, plan in zip(carriers, plans, strict=True):
        carrier._require_live(f"run {label} on")
        _require_ready(carrier, plan, label)
    return plans


def _require_ready(carrier: TiledEvictable, plan: ResidencyPlan, name: str) -> None:
    with carrier._engine.guard:
        carrier._require_admissible(carrier._engine.tiles, plan, f"run {name} on")
        carrier._pinned([], plan, f"run {name} on", name).close()


def device_of(carrier: TiledEvictable) -> torch.device:
    """Where blocks of tiles are computed."""
    primary = carrier.primary
    return primary._flat().device if isinstance(primary, TorchStorage) else torch.device("cpu")


def every_tile(carrier: TiledEvictable) -> TileSet:
    """All tiles of a carrier."""
    geometry = carrier._geometry
    return TileSet(geometry.coordinate(k) for k in range(geometry.tiles))


# -- looking at tiles ------------------------------------------------------------------------------------------------


@contextmanager
def streaming(carriers: Sequence[TiledEvictable], plans: Sequence[ResidencyPlan], label: str) -> Iterator[Streams]:
    """While this lasts, every tile of the carriers stays readable; then what the policies want gone goes."""
    streams = Streams()
    try:
        for carrier, plan in zip(carriers, plans, strict=True):
            streams.open(carrier, plan, label)
        yield streams
    finally:
        streams.close()
        for carrier, plan in zip(carriers, plans, strict=True):
            transitions.evict_for_policy(carrier._engine, carrier._tiles(plan.evict))


class Streams:
    """The pins and walks of one operation."""

    def __init__(self) -> None:
        self._pins: list[tuple[TiledEvictable, Pin]] = []
        self._walks: list[Walk] = []
        self._sources: dict[tuple[int, int, Layout, Symbols], Tiled] = {}

    def open(self, carrier: TiledEvictable, plan: ResidencyPlan, label: str) -> None:
        """Pin all of a carrier's tiles, and bring what its policy promotes."""
        engine = carrier._engine
        with engine.guard:
            carrier._require_admissible(engine.tiles, plan, f"run {label} on")
            # What the policy promotes may take the place of other tiles; after that, none of them leaves.
            pin = carrier._pinned([], plan, f"run {label} on", label)
            self._pins.append((carrier, pin))
            present = [tile for tile in engine.tiles if tile.slot is not None]
            absent = [tile for tile in engine.tiles if tile.slot is None]
            engine.hits += len(present)
            engine.misses += len(absent)
            watching.asked(engine.subject, present, is_hit=True)
            watching.asked(engine.subject, absent, is_hit=False)
            loads = []
            for tile in carrier._tiles(plan.promote):
                if tile.slot is None and tile.load is None:
                    loads.append(engine.start_load(tile, engine.reserve(tile), commits=True, landed=None))
                elif tile.load is not None:
                    loads.append(engine.joined(tile))
            if any(load.tile.load is load for load in loads):
                with watching.event("wait", "what the policy promotes"):
                    while any(load.tile.load is load for load in loads):
                        engine.guard.wait()
            for load in loads:
                if load.error is not None:
                    raise load.error
            carrier._require_admissible(engine.tiles, plan, f"run {label} on")
            for tile in engine.tiles:
                pin.add(tile)

    def source(self, operand: Tensor, symbols: Symbols) -> Source:
        """An operand by its symbols: tiled, or in memory."""
        if is_tiled(operand):
            carrier: TiledEvictable = operand.carrier  # type: ignore[assignment]
            same = (id(carrier), operand.offset, operand.layout, symbols)
            if same not in self._sources:  # else it is an operand twice, and every tile of it is read once
                walk = Walk(carrier._engine, operand)
                self._walks.append(walk)
                self._sources[same] = Tiled(carrier._geometry, symbols, walk, device_of(carrier))
            return self._sources[same]
        return Whole(in_mode_dims(values_of(operand), operand.layout), symbols)

    def close(self) -> None:
        """Nothing is needed any more."""
        for walk in self._walks:
            walk.close()
        for carrier, pin in self._pins:
            with carrier._engine.guard:
                pin.close()


class Result:
    """A dense Tensor on the compute carrier while its values are put in, in mode dims.

    Where the carrier has no torch storage they are written to it at the end.
    """

    def __init__(self, like: Carrier, dtype: Any, layout: Layout) -> None:
        self._carrier = like.allocate_like(layout.cosize, dtype=dtype, empty=True)
        self._layout = layout
        self._is_staged = not isinstance(self._carrier, TorchStorage)
        self._flat = torch.zeros(layout.cosize, dtype=dtype.torch_dtype) if self._is_staged else self._carrier._flat()
        self._leaves = strided(self._flat, layout, 0)
        modes = in_mode_dims(self._leaves, layout)
        shares = modes.numel() > 0 and modes.data_ptr() == self._leaves.data_ptr()
        self._is_own = shares
        self.modes = modes
        """The values, to be filled."""

    def tensor(self) -> Tensor:
        """The Tensor, its values in place."""
        if not self._is_own:
            order, sizes, begin = list[int](), list[int](), 0
            for mode in self._layout:
                extents = [n for n, _ in mode.leaves()]
                order.extend(range(begin + len(extents) - 1, begin - 1, -1))
                sizes.extend(reversed(extents))
                begin += len(extents)
            self._leaves.copy_(self.modes.reshape(sizes).permute(order))
        if self._is_staged:
            write_all(self._carrier, 0, self._flat)
        return Tensor._make(self._carrier, 0, self._layout)


# -- the operations --------------------------------------------------------------------------------------------------


def _run(
    invocation: ResolvedInvocation, carriers: Sequence[TiledEvictable], plans: Sequence[ResidencyPlan]
) -> ProviderResult:
    with no_grad(), streaming(carriers, plans, invocation.name) as streams:
        compute = carriers[0].primary
        symbols = symbols_of(invocation)
        if symbols is None:
            return ProviderResult([_on_dense(invocation, streams)])
        spec = invocation.results[0]
        result = Result(compute, spec.dtype, spec.layout)
        if invocation.name in ("reduce_sum", "matmul"):
            _accumulated(invocation, streams, symbols, result.modes)
        else:
            _pointwise(invocation, streams, symbols, result.modes)
        return ProviderResult([result.tensor()])


def symbols_of(invocation: ResolvedInvocation) -> list[Symbols] | None:
    """The symbols of every operand and, last, of the result; None where it is not computed in blocks.

    That is where modes do not meet as a whole, and on compute carriers without torch storage, which compute themselves.
    """
    if not isinstance(carriers_of(invocation.operands)[0].primary, TorchStorage):
        return None
    if invocation.name == "reduce_sum":
        return _reduced(invocation)
    if invocation.name == "matmul":
        return _multiplied(invocation)
    sizes = _sizes(invocation.results[0].layout)
    found = [
        _aligned(_sizes(operand.layout), sizes) if isinstance(operand, Tensor) else ()
        for operand in invocation.operands
    ]
    return None if None in found else [*found, tuple(range(len(sizes)))]  # type: ignore[list-item]


def _sizes(layout: Layout) -> list[int]:
    return [mode.size for mode in layout]


def _aligned(sizes: Sequence[int], common: Sequence[int]) -> Symbols | None:
    """Modes aligned from the last; None where a nested one is widened in part."""
    found: list[int | None] = []
    for k, extent in enumerate(sizes, start=len(common) - len(sizes)):
        if extent == common[k]:
            found.append(k)
        elif extent == 1:
            found.append(None)
        else:
            return None
    return tuple(found)


def _reduced(invocation: ResolvedInvocation) -> list[Symbols] | None:
    layout: Layout = invocation.operands[0].layout
    gone, keepdims = set(invocation.options["leaves"]), invocation.options["keepdims"]
    kept: list[int | None] = []
    begin = 0
    for k, mode in enumerate(layout):
        own = range(begin, begin + len(mode.leaves()))
        begin = own.stop
        here = [leaf for leaf in own if leaf in gone]
        if not here:
            kept.append(k)
        elif len(here) < len(own):
            return None
        elif keepdims:
            kept.append(None)
    if len(kept) != len(invocation.results[0].layout):
        return None
    return [tuple(range(len(layout))), tuple(kept)]


def _multiplied(invocation: ResolvedInvocation) -> list[Symbols] | None:
    left, right = (_sizes(operand.layout) for operand in invocation.operands)
    result = _sizes(invocation.results[0].layout)
    rows, columns = len(left) > 1, len(right) > 1
    batch = len(result) - rows - columns
    inner = len(result)
    of_left = _aligned(left[:-2], result[:batch]) if len(left) > 2 else ()
    of_right = _aligned(right[:-2], result[:batch]) if len(right) > 2 else ()
    if of_left is None or of_right is None:
        return None
    row, column = batch, batch + rows
    return [
        (*of_left, *((row,) if rows else ()), inner),
        (*of_right, inner, *((column,) if columns else ())),
        tuple(range(len(result))),
    ]


def extents_of(invocation: ResolvedInvocation, symbols: Sequence[Symbols]) -> Region:
    """Every symbol from its beginning to its end."""
    whole: Region = {}
    layouts = [o.layout if isinstance(o, Tensor) else None for o in invocation.operands]
    for layout, own in zip([*layouts, invocation.results[0].layout], symbols, strict=True):
        if layout is not None:
            for extent, symbol in zip(_sizes(layout), own, strict=True):
                if symbol is not None:
                    whole[symbol] = (0, extent)
    return whole


def _relu(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.clamp_min(x, 0, out=out)


_DIRECT: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "add": torch.add,
    "elementwise_mul": torch.mul,
    "mul": torch.mul,
    "relu": _relu,
}
"""What torch computes straight into its place, where operands have the dtype of the result."""


def _pointwise(
    invocation: ResolvedInvocation, streams: Streams, symbols: Sequence[Symbols], result: torch.Tensor
) -> None:
    """Every region of the result is computed once and put in its place."""
    operands = invocation.operands
    tensors = [k for k, operand in enumerate(operands) if isinstance(operand, Tensor)]
    sources = [streams.source(operands[k], symbols[k]) for k in tensors]
    lead = len(symbols[-1])
    is_plain = result.dtype.itemsize > 1 and all(operands[k].dtype() is invocation.results[0].dtype for k in tensors)
    for here, parts in blocks(extents_of(invocation, symbols), sources):
        origin, extents = zip(*(here[s] for s in range(lead)), strict=True) if lead else ((), ())
        target = region_of(result, origin, [e - b for b, e in zip(origin, extents, strict=True)])
        given = list(operands)
        for k, part in zip(tensors, parts, strict=True):
            given[k] = _spread_out(part, symbols[k], lead)
        with computing(invocation.name, sources):
            if is_plain:
                _DIRECT[invocation.name](*given, out=target)
                continue
            for k in tensors:
                given[k] = from_torch(given[k])
            target.copy_(values_of(invocation.call.definition(*given, **invocation.options)))


def _spread_out(part: torch.Tensor, symbols: Symbols, lead: int) -> torch.Tensor:
    """A part with one dim for each dim of the result, 1 where it is repeated."""
    own = [s for s in symbols if s is not None]
    return part.reshape([part.shape[own.index(s)] if s in own else 1 for s in range(lead)])


def accumulator_of(invocation: ResolvedInvocation) -> torch.dtype:
    """The dtype in which values are added up."""
    chosen = invocation.options.get("accumulator_dtype")
    output = invocation.results[0].dtype.torch_dtype
    if chosen is not None and invocation.results[0].dtype.is_floating:
        return torch.promote_types(chosen.torch_dtype, torch.float32 if output in _NARROW else output)
    return torch.float32 if output in _NARROW else output


def _accumulated(
    invocation: ResolvedInvocation, streams: Streams, symbols: Sequence[Symbols], result: torch.Tensor
) -> None:
    dtype = accumulator_of(invocation)
    total = result.zero_() if result.dtype == dtype else torch.zeros(result.shape, dtype=dtype, device=result.device)
    sources = [streams.source(o, own) for o, own in zip(invocation.operands, symbols[:-1], strict=True)]
    begin = [0] * result.dim()
    contract(total, symbols[-1], begin, extents_of(invocation, symbols), sources)
    if total is not result:
        result.copy_(total)


def _on_dense(invocation: ResolvedInvocation, streams: Streams) -> Tensor:
    """The compute carrier's own operation on dense copies of the tiled operands, where blocks cannot say it."""
    operands = [dense_copy(o, streams) if is_tiled(o) else o for o in invocation.operands]
    made: Tensor = invocation.call.definition(*operands, **invocation.options)
    return made


def dense_copy(operand: Tensor, streams: Streams) -> Tensor:
    """A tiled Tensor's values on its compute carrier, with the same shape."""
    from strideweave.operation.alignment import dense_like

    copy = Result(operand.carrier.primary, operand.dtype(), dense_like(operand.shape, [operand.layout]))  # type: ignore[attr-defined]
    symbols = tuple(range(len(operand.layout)))
    whole = {k: (0, n) for k, n in enumerate(_sizes(operand.layout))}
    for here, (part,) in blocks(whole, [streams.source(operand, symbols)]):
        origin = [here[k][0] for k in symbols]
        region_of(copy.modes, origin, [here[k][1] - here[k][0] for k in symbols]).copy_(part)
    return copy.tensor()
