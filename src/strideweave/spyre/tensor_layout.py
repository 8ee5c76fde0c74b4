"""SpyreTensorLayout: how a host tensor sits in the sticks of the card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, overload

import torch

from strideweave.spyre.sticks import STICK_NBYTES, DataFormat, format_of

if TYPE_CHECKING:
    from strideweave.layout import Layout

MAX_RANK: Final = 6
"""The most host dims that a layout has; one more when it is sparse."""


class ElementArrangement(Enum):
    """The order of elements within sticks."""

    STANDARD = "STANDARD"
    DL16_TO_FP32 = "DL16_TO_FP32"
    FP32_TO_DL16 = "FP32_TO_DL16"
    QFP8CH = "QFP8CH"
    EXX2 = "EXX2"

    def __repr__(self) -> str:
        return f"ElementArrangement.{self.name}"


class SpyreTensorLayout:
    """Device memory of a host tensor: dense, row-major over `device_size`, whose last extent is the stick.

    `SpyreTensorLayout(size, dtype)` and `SpyreTensorLayout(size, strides, dtype, dim_order[, arrangement])` make the
    generic stick layout of a host tensor: `dim_order` (0 .. n-1 unless given) names the stick dim last, or ends with -1
    for a sparse tensor, of which every stick holds one element. `SpyreTensorLayout(device_size, stride_map,
    device_dtype[, arrangement, dim_map])` says it all.

    Shapes: `device_size`, `stride_map` and `dim_map` have one entry per device dim, outermost first.
    Units: elements. Errors: TypeError, ValueError.
    Source: seed 002; the rule of the generic stick layout.

    >>> import torch
    >>> from strideweave.spyre import SpyreTensorLayout
    >>> layout = SpyreTensorLayout((5, 100, 150), torch.float16)
    >>> layout.device_size, layout.stride_map, layout.nbytes
    ((100, 3, 5, 64), (150, 64, 15000, 1), 192000)
    """

    __slots__ = ("device_dtype", "device_size", "dim_map", "element_arrangement", "stride_map")

    device_size: tuple[int, ...]
    """Extents, outermost first; the last is the elements per stick."""
    stride_map: tuple[int, ...]
    """How far one step along a device dim moves the host offset; -1 where a dim is never stepped."""
    device_dtype: DataFormat
    """The number format."""
    element_arrangement: ElementArrangement
    """The order of elements within sticks."""
    dim_map: tuple[int, ...] | None
    """The host dim of each device dim, -1 where there is none; None where a layout was made without."""

    @overload
    def __init__(self, size: Sequence[int], dtype: torch.dtype, /) -> None: ...
    @overload
    def __init__(
        self,
        size: Sequence[int],
        strides: Sequence[int],
        dtype: torch.dtype,
        dim_order: Sequence[int],
        element_arrangement: ElementArrangement = ...,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device_size: Sequence[int],
        stride_map: Sequence[int],
        device_dtype: DataFormat,
        element_arrangement: ElementArrangement = ...,
        dim_map: Sequence[int] | None = ...,
        /,
    ) -> None: ...

    def __init__(self, *args: Any) -> None:
        if len(args) == 2 and isinstance(args[1], torch.dtype):
            made: tuple[tuple[int, ...], tuple[int, ...], DataFormat, tuple[int, ...] | None]
            size, dtype = args
            extents = _ints(size, "size")
            made = _generic(extents, _contiguous(extents), dtype, tuple(range(len(extents))))
            arrangement = ElementArrangement.STANDARD
        elif len(args) in (4, 5) and isinstance(args[2], torch.dtype):
            size, strides, dtype, order = args[:4]
            made = _generic(_ints(size, "size"), _ints(strides, "strides"), dtype, _ints(order, "dim_order"))
            arrangement = args[4] if len(args) == 5 else ElementArrangement.STANDARD
        elif len(args) in (3, 4, 5) and isinstance(args[2], DataFormat):
            dims = args[4] if len(args) == 5 else None
            made = (
                _ints(args[0], "device_size"),
                _ints(args[1], "stride_map"),
                args[2],
                None if dims is None else _ints(dims, "dim_map"),
            )
            _require_whole(*made)
            arrangement = args[3] if len(args) > 3 else ElementArrangement.STANDARD
        else:
            raise TypeError(
                f"cannot make a SpyreTensorLayout of {args!r}: it takes (size, dtype), (size, strides, dtype, "
                "dim_order) or (device_size, stride_map, device_dtype). Pass one of these."
            )
        if not isinstance(arrangement, ElementArrangement):
            raise TypeError(
                f"cannot arrange elements by {arrangement!r}: it is no ElementArrangement. Leave it out for STANDARD."
            )
        for name, value in zip(
            ("device_size", "stride_map", "device_dtype", "dim_map", "element_arrangement"),
            (*made, arrangement),
            strict=True,
        ):
            object.__setattr__(self, name, value)

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def elems_per_stick(self) -> int:
        """How many elements a stick holds."""
        return self.device_dtype.elems_per_stick()

    @property
    def elems(self) -> int:
        """The elements of device memory that the tensor takes, padding included."""
        return math.prod(self.device_size)

    @property
    def nbytes(self) -> int:
        """The bytes of device memory that the tensor takes, padding included."""
        return STICK_NBYTES * math.prod(self.device_size[:-1])

    @property
    def device_strides(self) -> tuple[int, ...]:
        """How many elements one step along a device dim moves in device memory."""
        return _contiguous(self.device_size)

    @property
    def layout(self) -> Layout:
        """The device dims as a hierarchical Layout into device memory, in elements."""
        from strideweave.layout import Layout, Shape, Stride  # `import torch` must not pay for it

        return Layout(Shape(*self.device_size), Stride(*self.device_strides))

    def _key(self) -> tuple[object, ...]:
        return self.device_size, self.stride_map, self.device_dtype, self.element_arrangement

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpyreTensorLayout) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name!r} of a SpyreTensorLayout: it is immutable. Make another one.")

    def __reduce__(self) -> tuple[object, ...]:
        return SpyreTensorLayout, (
            self.device_size,
            self.stride_map,
            self.device_dtype,
            self.element_arrangement,
            self.dim_map,
        )

    def __repr__(self) -> str:
        more = "" if self.dim_map is None else f", {self.element_arrangement!r}, {self.dim_map!r}"
        if self.dim_map is None and self.element_arrangement is not ElementArrangement.STANDARD:
            more = f", {self.element_arrangement!r}"
        return f"SpyreTensorLayout({self.device_size!r}, {self.stride_map!r}, {self.device_dtype!r}{more})"


def _generic(
    size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, order: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], DataFormat, tuple[int, ...]]:
    """The generic stick layout: the stick dim twice, the first host dim just outside the stick."""
    form = format_of(dtype)
    eps = form.elems_per_stick()
    sparse = bool(order) and order[-1] == -1
    _require_order(size, strides, order, sparse)
    if not order:
        return (1, eps), (-1, -1), form, (-1, -1)
    first, last = order[0], order[-1]
    dims = (last, first, last) if len(order) == 2 else (*order[1:], first, last)
    if len(order) == 1:
        dims = (first, first)
    extents = [1 if d == -1 else size[d] for d in dims]
    tiles = max(k for k in range(len(dims) - 1) if dims[k] == last)
    extents[tiles] = 1 if sparse else -(-size[last] // eps)
    extents[-1] = eps
    steps: list[int] = [-1] * len(dims)
    seen: dict[int, int] = {}
    for k in range(len(dims) - 1, -1, -1):
        d = dims[k]
        if d == -1 or size[d] == 1:
            continue
        steps[k] = strides[d] if d not in seen else steps[seen[d]] * extents[seen[d]]
        seen[d] = k
    return tuple(extents), tuple(steps), form, dims


def _require_order(size: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...], sparse: bool) -> None:
    if len(strides) != len(size):
        raise ValueError(
            f"cannot lay out size {size} with strides {strides}: they have {len(size)} and {len(strides)} entries. "
            "Give one stride per dim."
        )
    named = order[:-1] if sparse else order
    if sorted(named) != list(range(len(size))):
        raise ValueError(
            f"cannot lay out size {size} in dim order {order}: it must name every dim of 0 .. {len(size) - 1} once, "
            "and may end with -1 for a sparse layout. Name them all."
        )
    limit = MAX_RANK + 1 if sparse else MAX_RANK
    if len(order) > limit:
        raise ValueError(
            f"cannot lay out size {size}: it has {len(size)} dims, and a layout has at most {MAX_RANK}. Merge dims."
        )
    if any(n < 0 for n in size):
        raise ValueError(f"cannot lay out size {size}: an extent is negative. Extents are 0 or more.")


def _require_whole(
    device_size: tuple[int, ...], stride_map: tuple[int, ...], form: DataFormat, dim_map: tuple[int, ...] | None
) -> None:
    if (
        not device_size
        or len(stride_map) != len(device_size)
        or (dim_map is not None and len(dim_map) != len(stride_map))
    ):
        raise ValueError(
            f"cannot make a layout of device size {device_size} and stride map {stride_map}: they have one entry per "
            "device dim each, the stick last. Make them match."
        )
    if device_size[-1] != form.elems_per_stick():
        raise ValueError(
            f"cannot make a layout of device size {device_size} in {form.name}: its last extent is {device_size[-1]}, "
            f"and a stick holds {form.elems_per_stick()} elements. End with that."
        )


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _ints(values: Any, name: str) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise TypeError(f"cannot read {name} from {values!r}: it is a sequence of ints. Pass a tuple.")
    found = tuple(values)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"cannot use {value!r} in {name}: entries are ints. Pass ints.")
    return found
