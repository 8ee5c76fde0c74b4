"""Work division: over how many cores each symbol of an operation is divided, so that every core's windows fit."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Final

import sympy

from strideweave.inductor.errors import Unsupported
from strideweave.spyre import config
from strideweave.spyre.specs import OpSpec, TensorArg
from strideweave.spyre.windows import access_window

_log = logging.getLogger("strideweave.inductor.work_division")
_MIB: Final = 2**20

Splits = dict[sympy.Symbol, int]


def divide(spec: OpSpec, *, cores: int | None = None, hint: Mapping[sympy.Symbol, int] | None = None) -> OpSpec:
    """The same operation divided over the cores.

    First what the span limit demands; then, for a matrix product, the division that moves the least; then what is left
    of the cores to the largest dims. `hint` takes the place of the last two.

    Errors: Unsupported when a core's window into some operand stays above the limit.
    Source: work division of seed 002's device, in three steps.
    """
    budget = config.sencores if cores is None else cores
    committed = span_reduction(spec, budget)
    if hint:
        splits = _hinted(spec, committed, hint, budget)
    else:
        splits = _matmul_division(spec, committed, budget) or distribute(spec, committed, budget)
    divided = replace(
        spec, iteration_space={s: (extent, splits.get(s, 1)) for s, (extent, _) in spec.iteration_space.items()}
    )
    require_windows(divided)
    return divided


# -- step 1 ----------------------------------------------------------------------------------------------------------


def span_reduction(spec: OpSpec, cores: int, *, is_trial: bool = False) -> Splits:
    """The fewest cores with which the windows into all operands fit, as far as that can be found; a trial is quiet."""
    splits: Splits = dict.fromkeys(spec.iteration_space, 1)
    for arg in spec.args:
        if per_core_span(spec, arg, splits) <= config.max_span_bytes:
            continue
        for coordinate in arg.device_coordinates[:-1]:
            symbols = [s for s in spec.iteration_space if s in coordinate.free_symbols]
            if not symbols:
                continue
            splits = _best(spec, arg, symbols, splits, cores)
            if per_core_span(spec, arg, splits) <= config.max_span_bytes:
                break
            if any(_part(spec, s, splits[s]) > 1 for s in symbols):
                if not is_trial:
                    _log.warning("cannot satisfy the span limit for %s of %s by cores", arg.name, spec.op)
                break
    reductions = [s for s in reduction_symbols(spec) if splits[s] > 1]
    if len(reductions) > 1:
        raise Unsupported(
            f"cannot divide {spec.op} over cores along {reductions}: the span limit asks for more than one reduction "
            "dim. One can be divided. Tile one of them with a hint."
        )
    return splits


def _best(spec: OpSpec, arg: TensorArg, symbols: list[sympy.Symbol], splits: Splits, cores: int) -> Splits:
    """The splits of some symbols with the largest window that fits, or the smallest that there is."""
    others = math.prod(n for s, n in splits.items() if s not in symbols)
    fitting: list[tuple[int, Splits]] = []
    best: tuple[int, Splits] = (per_core_span(spec, arg, splits), splits)
    for counts in product(*(_allowed(spec, s, splits[s]) for s in symbols)):
        if math.prod(counts) * others > cores:
            continue
        trial = {**splits, **dict(zip(symbols, counts, strict=True))}
        span = per_core_span(spec, arg, trial)
        if span <= config.max_span_bytes:
            fitting.append((span, trial))
        elif span < best[0]:
            best = (span, trial)
    return max(fitting, key=lambda found: found[0])[1] if fitting else best[1]


def _allowed(spec: OpSpec, symbol: sympy.Symbol, at_least: int) -> list[int]:
    """The counts into which a symbol divides: divisors of its range, whole sticks where it runs along sticks."""
    extent = int(spec.iteration_space[symbol][0])
    eps = _stick(spec, symbol)
    units = extent // eps if extent % eps == 0 else 1
    return [d for d in divisors(units) if d >= at_least] or [at_least]


@lru_cache(maxsize=1024)
def divisors(n: int) -> tuple[int, ...]:
    """All divisors, ascending.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def _stick(spec: OpSpec, symbol: sympy.Symbol) -> int:
    """The elements per stick where a symbol runs along the sticks of some operand; 1 where it does not."""
    sticks = [arg.device_size[-1] for arg in spec.args if symbol in arg.device_coordinates[-1].free_symbols]
    return math.lcm(*sticks) if sticks else 1


def _part(spec: OpSpec, symbol: sympy.Symbol, count: int) -> int:
    return -(-int(spec.iteration_space[symbol][0]) // count)


def per_core_span(spec: OpSpec, arg: TensorArg, splits: Mapping[sympy.Symbol, int]) -> int:
    """The bytes of one core's window into an operand, the largest over the cores."""
    itemsize = arg.device_dtype.itemsize
    if math.prod(arg.device_size) * itemsize <= config.max_span_bytes:
        return math.prod(arg.device_size) * itemsize  # a bound; that is all that is asked
    window = window_of(spec, arg, {s: _part(spec, s, splits[s]) for s in spec.iteration_space})
    return math.prod(arg.device_size) * itemsize if window is None else window


def window_of(spec: OpSpec, arg: TensorArg, ranges: Mapping[sympy.Symbol, int]) -> int | None:
    """The bytes of the window into an operand over these ranges; None where it cannot be determined."""
    indirect = {s: int(extent) for s, (_, extent) in spec.op_info.get("indirect", {}).items()}
    window = access_window(
        arg.device_coordinates, arg.device_size, arg.device_dtype.itemsize, ranges, indirect=indirect
    )
    whole = math.prod(arg.device_size) * arg.device_dtype.itemsize
    return None if window is None else min(window.nbytes, whole)  # a masked load touches nothing outside


# -- steps 2 and 3 ---------------------------------------------------------------------------------------------------


def reduction_symbols(spec: OpSpec) -> tuple[sympy.Symbol, ...]:
    """The symbols that are combined away."""
    found: tuple[sympy.Symbol, ...] = tuple(spec.op_info.get("reduction_symbols", ()))
    return found


def distribute(spec: OpSpec, committed: Mapping[sympy.Symbol, int], cores: int) -> Splits:
    """The rest of the cores: the largest output dims first, each as many as divide it, then one reduction dim."""
    splits: Splits = dict(committed)
    left = cores // math.prod(splits.values())
    reductions = reduction_symbols(spec)
    outputs = [s for s in spec.iteration_space if s not in reductions and splits[s] == 1]
    for symbol in sorted(outputs, key=lambda s: -_units(spec, s)):
        splits[symbol] = max(d for d in _allowed(spec, symbol, 1) if d <= left)
        left //= splits[symbol]
    free = [s for s in reductions if splits[s] == 1]
    if free and left > 1 and all(splits[s] == 1 for s in reductions):
        symbol = max(free, key=lambda s: max(d for d in _allowed(spec, s, 1) if d <= left))
        splits[symbol] = max(d for d in _allowed(spec, symbol, 1) if d <= left)
    return splits


def _units(spec: OpSpec, symbol: sympy.Symbol) -> int:
    return -(-int(spec.iteration_space[symbol][0]) // _stick(spec, symbol))


def _matmul_division(spec: OpSpec, committed: Mapping[sympy.Symbol, int], cores: int) -> Splits | None:
    """The division of a matrix product whose cores read the least; None where it is none, or would leave more idle."""
    if spec.op != "batchmatmul" or any(n > 1 for n in committed.values()):
        return None
    default = distribute(spec, committed, cores)
    best: tuple[int, Splits] | None = None
    for splits in _divisions(spec, cores, math.prod(default.values())):
        cost = sum(_bytes_of(spec, arg, splits) for arg in spec.args)
        if best is None or cost < best[0]:
            best = (cost, splits)
    return None if best is None else best[1]


def _divisions(spec: OpSpec, cores: int, at_least: int) -> Iterator[Splits]:
    symbols = list(spec.iteration_space)
    choices = [[d for d in _allowed(spec, s, 1) if d <= cores] for s in symbols]
    for counts in product(*choices):
        if at_least <= math.prod(counts) <= cores:
            yield dict(zip(symbols, counts, strict=True))


def _bytes_of(spec: OpSpec, arg: TensorArg, splits: Mapping[sympy.Symbol, int]) -> int:
    """The bytes of an operand that one core touches."""
    touched = {s for coordinate in arg.device_coordinates for s in coordinate.free_symbols}
    elems = math.prod(_part(spec, s, splits[s]) for s in spec.iteration_space if s in touched)
    return elems * arg.device_dtype.itemsize


def _hinted(
    spec: OpSpec, committed: Mapping[sympy.Symbol, int], hint: Mapping[sympy.Symbol, int], cores: int
) -> Splits:
    splits: Splits = dict.fromkeys(spec.iteration_space, 1)
    for symbol, count in hint.items():
        if symbol not in splits:
            continue
        extent = int(spec.iteration_space[symbol][0])
        if extent % count or count not in _allowed(spec, symbol, 1):
            raise Unsupported(
                f"cannot divide {spec.op} over {count} cores along {symbol}: its range is {extent}. A count divides "
                f"the range in whole sticks. Choose one of {_allowed(spec, symbol, 1)}."
            )
        if count < committed[symbol]:
            _log.warning("a hint divides %s over %d cores, the span limit over %d", symbol, count, committed[symbol])
        splits[symbol] = count
    if math.prod(splits.values()) > cores:
        raise Unsupported(
            f"cannot divide {spec.op} over {math.prod(splits.values())} cores: the card has {cores}. Lower the counts "
            "of the hint."
        )
    return splits


def require_windows(spec: OpSpec) -> None:
    """Raise Unsupported unless every core's window into every operand is within the limit."""
    splits = {s: cores for s, (_, cores) in spec.iteration_space.items()}
    for arg in spec.args:
        span = per_core_span(spec, arg, splits)
        if span > config.max_span_bytes:
            divided = ", ".join(f"{s} by {n}" for s, n in splits.items() if n > 1) or "nothing"
            raise Unsupported(
                f"cannot run {spec.op} on the card: one core's window into {arg.name} ({arg.dtype}, device size "
                f"{arg.device_size}) is {span} bytes ({span / _MIB:.1f} MiB) with {divided} divided over cores. The "
                f"limit is {config.max_span_bytes} bytes. Run it in tiles: with spyre_hint(num_tiles_per_dim=...), or "
                "with automatic tiling (SPYRE_INDUCTOR_IGNORE_SPAN_OVERFLOW_HINTS=0)."
            )


def splits_by_coefficient(spec: OpSpec, index: sympy.Expr) -> dict[sympy.Expr, int]:
    """The division keyed by the coefficient that each symbol has in an index, as passes that rename symbols need it."""
    return {
        index.coeff(symbol): cores
        for symbol, (_, cores) in spec.iteration_space.items()
        if cores > 1 and index.coeff(symbol) != 0
    }
