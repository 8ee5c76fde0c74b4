"""`strideweave explain --sweep`: how an operation of many shapes and dtypes is tiled, as a table. Nothing runs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F

from strideweave.inductor import Unsupported, explain
from strideweave.inductor.report import OpRow, Report, mib
from strideweave.inductor.spans.plans import SpanOverflowTileLevel, describe
from strideweave.spyre import config
from strideweave.spyre.tensor_layout import SpyreTensorLayout
from strideweave.tools.explain import function_of, shape_of

Size = tuple[int, ...]
HEADINGS: Final = ("shape", "dtype", "device size", "size", "plan", "tiles", "window after")


@dataclass(frozen=True)
class Planned:
    """One operation of a case that got tiles of its own."""

    op: str
    buffer: str
    levels: tuple[SpanOverflowTileLevel, ...]


@dataclass(frozen=True)
class Case:
    """One shape and dtype. Units: bytes; None where it was refused, or cannot be determined."""

    shape: Size
    dtype: str
    device_size: Size
    """Of its largest operand."""
    nbytes: int
    """The device memory of that operand."""
    planned: tuple[Planned, ...] = ()
    tiles: int | None = None
    """How many times the operation runs that runs most often."""
    window_nbytes: int | None = None
    """The widest window of one core in one tile."""
    refused: str = ""
    """Why it cannot be compiled."""

    @property
    def plan(self) -> str:
        """The levels in words, operations with equal ones together."""
        if self.refused:
            return "refused"
        together: dict[str, list[str]] = {}
        for planned in self.planned:
            together.setdefault(describe(planned.levels), []).append(planned.op)
        if len(self.planned) == 1:
            return next(iter(together))
        return "; ".join(f"{', '.join(dict.fromkeys(ops))}: {levels}" for levels, ops in together.items()) or "none"

    def cells(self) -> tuple[str, ...]:
        """What the table shows of it."""
        tiles, window = ("-", "-") if self.refused else (str(self.tiles), mib(self.window_nbytes))
        size = "x".join(map(str, self.device_size))
        return "x".join(map(str, self.shape)), self.dtype, size, mib(self.nbytes), self.plan, tiles, window


@dataclass(frozen=True)
class Sweep:
    """The cases of one operation. `str(sweep)` is a table; `to_markdown()` one for a page; `to_json()` plain data."""

    op: str
    cases: tuple[Case, ...]
    limit_nbytes: int
    cores: int

    def __str__(self) -> str:
        rows = [HEADINGS, *(case.cells() for case in self.cases)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(HEADINGS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self._told(), *lines, *(f"{what}: {why}" for what, why in self._refusals())])

    def to_markdown(self) -> str:
        """The same table in Markdown."""
        rows = [HEADINGS, ("---",) * len(HEADINGS), *(case.cells() for case in self.cases)]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        refusals = [f"- {what}: {why}" for what, why in self._refusals()]
        return "\n".join([self._told() + ":", "", *lines, *(["", *refusals] if refusals else [])])

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and text."""
        return asdict(self)

    def _told(self) -> str:
        cores = f"{self.cores} core{'' if self.cores == 1 else 's'}"
        return f"{self.op}, windows of at most {mib(self.limit_nbytes)}, {cores}"

    def _refusals(self) -> list[tuple[str, str]]:
        """What was refused, and the first sentence of why; all of it is in `to_json()`."""
        return [(" ".join(case.cells()[:2]), case.refused.split(". ")[0] + ".") for case in self.cases if case.refused]


def sweep(spec: str, shapes: str, *, dtypes: str = "float16") -> Sweep:
    """How `spec` is tiled for every shape, under the configuration as it is.

    `spec` is add, mul, sum:DIM, softmax or softmax:DIM, linear, matmul, or FILE.py:FUNCTION, which is called with a
    tensor of the shape for each argument. `shapes` has commas between shapes, such as "87616x4096,98000x4096:float32";
    those without a dtype are tried with each of `dtypes`. A shape of linear is OUTxIN or ROWSxOUTxIN; one of matmul
    KxN, MxKxN or BATCHxMxKxN.

    Errors: ValueError for an operation or a shape that is none; whatever the function raises but Unsupported.

    >>> from strideweave.spyre import config
    >>> with config.patch(ignore_span_overflow_hints=False, sencores=1):
    ...     print(sweep("add", "87616x4096,8x64"))
    add, windows of at most 256 MiB, 1 core
    shape       dtype    device size  size       plan        tiles  window after
    87616x4096  float16  64x87616x64  684.5 MiB  dim 1 by 4  4      171.1 MiB
    8x64        float16  1x8x64       1024 B     none        1      1024 B
    """
    function, sizes_of = _operation(spec)
    cases = []
    for text in shapes.split(","):
        names = [text] if ":" in text else [f"{text}:{dtype.strip()}" for dtype in dtypes.split(",")]
        for shape, dtype in map(shape_of, names):
            cases.append(_case(function, shape, dtype, sizes_of(shape)))
    return Sweep(spec, tuple(cases), config.max_span_bytes, config.sencores)


def _case(function: Callable[..., Any], shape: Size, dtype: torch.dtype, sizes: Sequence[Size]) -> Case:
    largest = SpyreTensorLayout(max(sizes, key=math.prod), dtype)
    name = str(dtype).removeprefix("torch.")
    tensors = [torch.empty(size, dtype=dtype, device="meta") for size in sizes]
    try:
        report = explain(function, *tensors, plan_only=True)
    except Unsupported as refused:
        return Case(shape, name, largest.device_size, largest.nbytes, refused=str(refused))
    windows = [row.widest_nbytes for row in report.rows]
    widest = None if None in windows else max((w or 0 for w in windows), default=0)
    return Case(shape, name, largest.device_size, largest.nbytes, _planned(report), _tiles(report), widest)


def _planned(report: Report) -> tuple[Planned, ...]:
    """The operations with plans, once each, by the name of what they compute."""
    found: dict[tuple[str, str], Planned] = {}
    for row in report.rows:
        if row.spans is not None and row.spans.plan is not None:
            of = [other for other in report.rows if (other.program, other.buffer) == (row.program, row.buffer)]
            main = max(of, key=_work)
            found[row.program, row.buffer] = Planned(main.op, row.buffer, row.spans.plan.levels)
    return tuple(found.values())


def _work(row: OpRow) -> tuple[int, int]:
    return math.prod(row.whole_ranges.values()), len(row.operands)


def _tiles(report: Report) -> int:
    """How often the operation runs that runs most often; a shorter last tile is a row of its own."""
    runs: dict[tuple[str, str, str], int] = {}
    for row in report.rows:
        key = (row.program, row.name, row.op)
        runs[key] = runs.get(key, 0) + row.tiles
    return max(runs.values(), default=0)


# -- operations by name ----------------------------------------------------------------------------------------------


def _operation(spec: str) -> tuple[Callable[..., Any], Callable[[Size], list[Size]]]:
    """A function, and the sizes of its arguments for a shape."""
    name, _, detail = spec.partition(":")
    if name in ("add", "mul") and not detail:
        return (torch.add if name == "add" else torch.mul), lambda shape: [shape, shape]
    if name == "sum":
        dim = _dim(spec, detail)
        return (lambda x: x.sum(dim)), lambda shape: [_with_dim(spec, shape, dim)]
    if name == "softmax":
        dim = _dim(spec, detail or "-1")
        return (lambda x: torch.softmax(x, dim)), lambda shape: [_with_dim(spec, shape, dim)]
    if name == "linear" and not detail:
        return F.linear, _sizes_of_linear
    if name == "matmul" and not detail:
        return torch.matmul, _sizes_of_matmul
    if ".py:" not in spec:
        raise ValueError(
            f"cannot sweep {spec!r}: it is no operation. Name add, mul, sum:DIM, softmax, linear, matmul or "
            "FILE.py:FUNCTION."
        )
    function = function_of(spec)
    arguments = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return function, lambda shape: [shape for p in arguments if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _dim(spec: str, detail: str) -> int:
    try:
        return int(detail)
    except ValueError:
        raise ValueError(f"cannot sweep {spec!r}: it names no dim. Write one, as sum:0.") from None


def _with_dim(spec: str, shape: Size, dim: int) -> Size:
    if not -len(shape) <= dim < len(shape):
        raise ValueError(
            f"cannot sweep {spec!r} over {'x'.join(map(str, shape))}: it has {len(shape)} dims, and there is no dim "
            f"{dim} among them. Name one that it has."
        )
    return shape


def _sizes_of_linear(shape: Size) -> list[Size]:
    if len(shape) not in (2, 3):
        raise _wrong("linear", shape, "OUTxIN or ROWSxOUTxIN")
    rows, out, inner = (1, *shape)[-3:]
    return [(rows, inner), (out, inner)]


def _sizes_of_matmul(shape: Size) -> list[Size]:
    if len(shape) not in (2, 3, 4):
        raise _wrong("matmul", shape, "KxN, MxKxN or BATCHxMxKxN")
    rows, inner, out = (1, *shape)[-3:]
    batch = shape[:-3]
    return [(*batch, rows, inner), (*batch, inner, out)]


def _wrong(name: str, shape: Size, want: str) -> ValueError:
    return ValueError(
        f"cannot sweep {name} over {'x'.join(map(str, shape))}: its shapes are {want}. Write one of these."
    )
