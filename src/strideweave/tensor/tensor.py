"""A Tensor: a carrier, an offset into it, and the Layout that says which slot each coordinate has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

import torch

from strideweave.carriers.carrier import Carrier, Scalar
from strideweave.carriers.cpu import CPU
from strideweave.carriers.file_backed import read_all
from strideweave.dtype import StorageDType
from strideweave.layout import Layout, Shape, Stride

Key: TypeAlias = "int | Sequence[int | Sequence[int]] | slice | tuple[int | slice | Sequence[int], ...]"


@final
class Tensor:
    """The values that `layout`, moved by `offset`, finds in `carrier`. It owns no storage and copies none.

    Shapes: `layout.shape`; the first mode varies fastest wherever an ordinal stands for a coordinate.
    Units: `offset` in slots.
    Errors: TypeError for wrong kinds; ValueError for a negative offset or slots beyond the carrier.

    >>> from strideweave import CPU, DType, Layout, Tensor
    >>> t = Tensor(CPU(6, dtype=DType.Int32), 0, Layout.row_major(2, 3))
    >>> t[1, 2] = 7
    >>> t[1, 2], t[5], t.carrier[5]
    (7, 7, 7)
    """

    __slots__ = ("__weakref__", "carrier", "layout", "offset")

    carrier: Carrier
    offset: int
    layout: Layout

    def __init__(self, carrier: Carrier, offset: int, layout: Layout) -> None:
        if not isinstance(carrier, Carrier):
            raise TypeError(f"cannot make a Tensor over {type(carrier).__name__}: it takes a Carrier. Pass one.")
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"cannot make a Tensor at offset {offset!r}: an offset must be an integer. Pass an int.")
        if not isinstance(layout, Layout):
            raise TypeError(f"cannot make a Tensor with {type(layout).__name__}: it takes a Layout. Pass one.")
        if offset < 0:
            raise ValueError(
                f"cannot make a Tensor at offset {offset}: Tensor offset must be non-negative. Pass 0 or more."
            )
        if offset + layout.cosize > carrier.size():
            raise ValueError(
                f"cannot make a Tensor of {layout!r} at offset {offset}: it reaches {offset + layout.cosize} slots "
                f"and {carrier!r} has {carrier.size()}. Tensor storage exceeds carrier size. Use a smaller layout or "
                "offset."
            )
        object.__setattr__(self, "carrier", carrier)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "layout", layout)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name} of a Tensor: it is immutable. Make another Tensor over the carrier.")

    @property
    def shape(self) -> Shape:
        """The shape of the layout."""
        return self.layout.shape

    @property
    def version(self) -> int:
        """The version of the carrier's values."""
        return self.carrier.version

    def size(self) -> int:
        """How many coordinates there are."""
        return self.layout.size

    def dtype(self) -> StorageDType:
        """The dtype of every value."""
        return self.carrier.dtype()

    def carrier_type(self) -> type[Carrier]:
        """The exact class of the carrier."""
        return type(self.carrier)

    def is_mutable(self) -> bool:
        """Whether the values may be written through this Tensor."""
        return self.carrier.is_mutable()

    # -- elements and views ------------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> Scalar | Tensor:
        if _has_slice(key):
            return self._view(key if isinstance(key, tuple) else (key,))
        return self.carrier[self.offset + self._index(key)]

    def __setitem__(self, key: Key, value: Scalar) -> None:
        if _has_slice(key):
            raise TypeError(
                f"cannot assign to the slice {key!r}: assignment writes one element. Write elements, or use torch() "
                "and write there."
            )
        self.carrier[self.offset + self._index(key)] = value

    def _index(self, key: object) -> int:
        if isinstance(key, bool) or not isinstance(key, int | tuple | list):
            raise TypeError(
                f"cannot index a Tensor with {key!r}: a key is an ordinal, a coordinate or a tuple with slices. "
                "Pass an int or a tuple."
            )
        return self.layout.index(key)

    def _view(self, keys: tuple[object, ...]) -> Tensor:
        if len(keys) != len(self.layout):
            raise ValueError(
                f"cannot slice a Tensor of {len(self.layout)} modes with {len(keys)} keys: a view needs exactly one "
                "key per top-level mode. Add `:` for the modes to keep whole."
            )
        offset, kept = self.offset, []
        for k, key in enumerate(keys):
            mode = self.layout[k]
            if isinstance(key, slice):
                start, part = _slice_mode(mode, key)
                offset += start
                kept.append(part)
            elif isinstance(key, bool) or not isinstance(key, int):
                raise TypeError(f"cannot slice a Tensor with {key!r}: a key is an int or a slice. Pass one of these.")
            elif not 0 <= key < mode.size:
                raise ValueError(
                    f"cannot take {key} of mode {k}, which has {mode.size} coordinates: View integer key is out of "
                    "domain. Pass a smaller one."
                )
            else:
                offset += mode.index(key)
        layout = Layout.make_layout(*kept) if kept else Layout.empty()
        return Tensor(self.carrier, offset, layout)

    # -- bridges -----------------------------------------------------------------------------------------------

    def torch(self) -> torch.Tensor:
        """The same memory as a torch tensor; a nested mode becomes one dim per leaf, first leaf first.

        Errors: BufferError when the values are not in host memory (a tiled or file-backed carrier); it names what to
        call instead.
        """
        leaves = self.layout.leaves()
        flat = self.carrier._flat()
        # as_strided counts from the beginning of the storage, which a wrapped slice does not begin at.
        origin = int(flat.storage_offset()) + self.offset
        return torch.as_strided(flat, [n for n, _ in leaves], [d for _, d in leaves], origin)

    def materialize(self) -> Tensor:
        """A dense copy on an ordinary in-memory carrier, whatever the values live on; asked for, never silent.

        Shapes: the same. Errors: RuntimeError when some value is not there (an invalid tile).
        """
        if self.carrier._is_in_memory():
            return from_torch(self.torch().clone())
        copy = getattr(self.carrier, "_materialize", None)
        if copy is not None:
            result: Tensor = copy(self)
            return result
        return Tensor(CPU.wrap(read_all(self.carrier)), self.offset, self.layout)

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape!r}, dtype={self.dtype()!r}, carrier={self.carrier!r})"


def from_torch(source: torch.Tensor) -> Tensor:
    """A Tensor over the memory of `source`: shape, strides and order are kept, nothing is copied.

    Errors: TypeError for what is no torch tensor or not on the CPU; ValueError for an empty one, or one whose dtype has
    no storage here.

    >>> import torch
    >>> from strideweave import from_torch
    >>> x = torch.arange(6.0).reshape(2, 3)
    >>> t = from_torch(x)
    >>> t[1, 0], t.torch().data_ptr() == x.data_ptr()
    (3.0, True)
    """
    if not isinstance(source, torch.Tensor):
        raise TypeError(f"cannot make a Tensor from {type(source).__name__}: it is no torch tensor. Pass one.")
    if source.device.type != "cpu" or source.layout != torch.strided:
        raise TypeError(
            f"cannot share a {source.layout} tensor on {source.device}: only strided tensors in host memory are "
            "shared. Call .to_dense() or .cpu() first, which copies."
        )
    if source.numel() == 0:
        raise ValueError(
            f"cannot share a tensor of shape {tuple(source.shape)}: a Layout has extents of at least 1. Leave it out."
        )
    if source.is_conj() or source.is_neg():
        raise ValueError(
            "cannot share a lazily conjugated or negated tensor: its memory holds other values. Call .resolve_neg()."
        )
    plain = source.detach()
    slots = plain.untyped_storage().nbytes() // plain.element_size()
    flat = torch.as_strided(plain, (slots,), (1,), 0)
    layout = Layout(Shape(*plain.shape), Stride(*plain.stride()))
    return Tensor(CPU.wrap(flat), int(plain.storage_offset()), layout)


def _has_slice(key: object) -> bool:
    return isinstance(key, slice) or (isinstance(key, tuple) and any(isinstance(k, slice) for k in key))


def _slice_mode(mode: Layout, key: slice) -> tuple[int, Layout]:
    """The slots by which a slice moves the view, and the part of the mode that it keeps."""
    leaves = mode.leaves()
    if key == slice(None):
        return 0, mode
    if len(leaves) != 1:
        raise ValueError(
            f"cannot take {key} of a nested mode {mode!r}: only whole slices are supported for non-leaf modes. Use `:`."
        )
    extent, stride = leaves[0]
    step = 1 if key.step is None else key.step
    if step <= 0:
        raise ValueError(f"cannot take {key}: a view needs a positive step. Take it forward.")
    start, stop, _ = slice(key.start, key.stop, 1).indices(extent)
    if stop <= start:
        raise ValueError(f"cannot take {key} of a mode of {extent}: View slices must be non-empty. Widen it.")
    if (stop - start) % step:
        raise ValueError(
            f"cannot take {key} of a mode of {extent}: the width {stop - start} must be divisible by its step {step}. "
            "Change the stop."
        )
    return start * stride, Layout(Shape((stop - start) // step), Stride(stride * step))
