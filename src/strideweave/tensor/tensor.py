"""A Tensor: a carrier, an offset into it, and the Layout that says which slot each coordinate has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch

from strideweave.carriers.carrier import Carrier, Scalar
from strideweave.carriers.cpu import CPU
from strideweave.carriers.file_backed import read_all
from strideweave.dtype import StorageDType
from strideweave.layout import Layout, Shape
from strideweave.tensor import ports
from strideweave.tensor.picture import draw_tensor

Key: TypeAlias = "int | Sequence[int | Sequence[int]] | slice | tuple[int | slice | Sequence[int], ...]"


class Tensor:
    """The values that `layout`, moved by `offset`, finds in `carrier`. It owns no storage and copies none.

    With `requires_grad`, operations on it are recorded, and `backward` of what they lead to leaves the gradient in
    `grad`.

    Shapes: `layout.shape`; the first mode varies fastest wherever an ordinal stands for a coordinate.
    Units: `offset` in slots.
    Errors: TypeError for wrong kinds; ValueError for a negative offset or slots beyond the carrier; RuntimeError for
    `requires_grad` on whole numbers.

    >>> from strideweave import CPU, DType, Layout, Tensor
    >>> t = Tensor(CPU(6, dtype=DType.Int32), 0, Layout.row_major(2, 3))
    >>> t[1, 2] = 7
    >>> t[1, 2], t[5], t.carrier[5]
    (7, 7, 7)
    """

    __slots__ = ("__weakref__", "_carrier", "_grad", "_layout", "_node", "_offset", "_requires_grad", "_retains_grad")

    _carrier: Carrier
    _offset: int
    _layout: Layout
    _requires_grad: bool
    _retains_grad: bool
    _grad: Tensor | None
    _node: Any

    def __init__(self, carrier: Carrier, offset: int, layout: Layout, *, requires_grad: bool = False) -> None:
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
        self._carrier = carrier
        self._offset = offset
        self._layout = layout
        self._requires_grad = False
        self._retains_grad = False
        self._grad = None
        self._node = None
        if requires_grad:
            self.requires_grad_()

    @classmethod
    def _make(cls, carrier: Carrier, offset: int, layout: Layout) -> Tensor:
        """The Tensor over slots that are known to be there: nothing is checked again."""
        made = cls.__new__(cls)
        made._carrier = carrier
        made._offset = offset
        made._layout = layout
        made._requires_grad = False
        made._retains_grad = False
        made._grad = None
        made._node = None
        return made

    # -- facts -------------------------------------------------------------------------------------------------

    @property
    def carrier(self) -> Carrier:
        """Where the values live."""
        return self._carrier

    @property
    def offset(self) -> int:
        """The slot at which the layout's index 0 lies."""
        return self._offset

    @property
    def layout(self) -> Layout:
        """Which slot each coordinate has."""
        return self._layout

    @property
    def shape(self) -> Shape:
        """The shape of the layout."""
        return self._layout.shape

    @property
    def version(self) -> int:
        """The version of the carrier's values."""
        return self._carrier.version

    def size(self) -> int:
        """How many coordinates there are."""
        return self._layout.size

    def dtype(self) -> StorageDType:
        """The dtype of every value."""
        return self._carrier.dtype()

    def carrier_type(self) -> type[Carrier]:
        """The exact class of the carrier."""
        return type(self._carrier)

    def is_mutable(self) -> bool:
        """Whether the values may be written through this Tensor."""
        return self._carrier.is_mutable()

    def is_differentiable(self) -> bool:
        """Whether the dtype has gradients: every floating one has."""
        return self._carrier.dtype().is_floating

    def _version_token(self) -> tuple[tuple[int, object], ...]:
        """The identity and the version of what the values depend on."""
        return ((id(self._carrier), self._carrier._content_token()),)

    # -- gradients ---------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this Tensor are recorded."""
        return self._requires_grad

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made it."""
        return self._node is None

    @property
    def autograd_ctx(self) -> Any:
        """The recorded operation that made this Tensor; None for a leaf."""
        return self._node

    @autograd_ctx.setter
    def autograd_ctx(self, operation: Any) -> None:
        self._node = operation
        self._requires_grad = self._requires_grad or operation is not None

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward has left here; None before."""
        return self._grad

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        if gradient is not None:
            self._require_differentiable("set the grad of")
            if not isinstance(gradient, Tensor):
                raise TypeError(f"cannot set grad to {type(gradient).__name__}: it is a Tensor or None. Pass one.")
            if gradient.shape != self.shape or gradient.dtype() is not self.dtype():
                raise ValueError(
                    f"cannot set the grad of {self!r} to {gradient!r}: a gradient has the shape and dtype of its "
                    "tensor. Reshape or convert it."
                )
        self._grad = gradient

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """This Tensor, its operations recorded from now on (or no longer).

        Errors: RuntimeError for whole numbers, and for turning off what an operation has made.
        """
        if requires_grad:
            self._require_differentiable("require gradients of")
        elif self._node is not None:
            raise RuntimeError(
                f"cannot stop recording {self!r}: an operation made it, so it is no leaf. Use detach() for a Tensor "
                "that is not recorded."
            )
        self._requires_grad = bool(requires_grad)
        return self

    def detach(self) -> Tensor:
        """Another Tensor over the same values that no graph knows."""
        return Tensor._make(self._carrier, self._offset, self._layout)

    def retain_grad(self, retain: bool = True) -> None:
        """Have backward leave the gradient here too, though an operation made this Tensor.

        Errors: RuntimeError when it requires no gradient.
        """
        self._require_differentiable("retain the grad of")
        if not self._requires_grad:
            raise RuntimeError(
                f"cannot retain the grad of {self!r}: retain_grad is not available, since it requires no gradient. "
                "Set requires_grad on what it is made of."
            )
        self._retains_grad = bool(retain)

    def backward(self, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
        """Leave in the `grad` of every leaf, added to what is there, this Tensor's gradient weighted by `gradient`.

        Errors: RuntimeError when nothing was recorded, the graph was freed, or a saved value changed; ValueError
        without a `gradient` for more than one value, or for one of another layout.
        Source: facts, autograd.

        >>> import strideweave as sw
        >>> x = sw.tensor([1.0, 2.0, 3.0], requires_grad=True)
        >>> sw.reduce_sum(x * x).backward()
        >>> sw.to_list(x.grad)
        [2.0, 4.0, 6.0]
        """
        ports.call("backward", self, gradient, retain_graph)

    @staticmethod
    def backwards_traversal(gradient: Tensor, operation: Any, retain_graph: bool = False) -> None:
        """Leave in the leaves under `operation` what its result's `gradient` comes to."""
        ports.call("backwards_traversal", gradient, operation, retain_graph)

    def _require_differentiable(self, what: str) -> None:
        if not self.is_differentiable():
            raise RuntimeError(
                f"cannot {what} {self!r}: that is not available for {self.dtype().name}, since only floating dtypes "
                "have gradients. Convert it first."
            )

    # -- arithmetic --------------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("add", self, other)
        return result

    def __radd__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("add", other, self)
        return result

    def __sub__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("sub", self, other)
        return result

    def __rsub__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("sub", other, self)
        return result

    def __mul__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("mul", self, other)
        return result

    def __rmul__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("mul", other, self)
        return result

    def __truediv__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("div", self, other)
        return result

    def __rtruediv__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("div", other, self)
        return result

    def __mod__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("rem", self, other)
        return result

    def __pow__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("pow", self, other)
        return result

    def __rpow__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("pow", other, self)
        return result

    def __lt__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("lt", self, other)
        return result

    def __le__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("le", self, other)
        return result

    def __gt__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("gt", self, other)
        return result

    def __ge__(self, other: object) -> Tensor:
        result: Tensor = ports.operator("ge", self, other)
        return result

    def __matmul__(self, other: object) -> Tensor:
        if not isinstance(other, Tensor):
            return NotImplemented
        result: Tensor = ports.call("matmul", self, other)
        return result

    def __neg__(self) -> Tensor:
        result: Tensor = ports.call("neg", self)
        return result

    def __abs__(self) -> Tensor:
        result: Tensor = ports.call("abs", self)
        return result

    def __bool__(self) -> bool:
        if self.size() != 1:
            raise ValueError(
                f"cannot read {self!r} as a truth: it has {self.size()} values. Reduce it to one, or compare Tensors "
                "with `is`."
            )
        return bool(self[0])

    def __iter__(self) -> NoReturn:
        raise TypeError(
            f"cannot iterate over {self!r}: its modes nest, and an ordinal is one value. Slice it, or use to_list()."
        )

    # -- elements and views ------------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> Scalar | Tensor:
        if _has_slice(key):
            view: Tensor = ports.call("slice", self, key if isinstance(key, tuple) else (key,))
            return view
        return self._carrier[self._offset + self._index(key)]

    def __setitem__(self, key: Key, value: Scalar) -> None:
        if _has_slice(key):
            raise TypeError(
                f"cannot assign to the slice {key!r}: assignment writes one element. Write elements, or use torch() "
                "and write there."
            )
        self._carrier[self._offset + self._index(key)] = value

    def _index(self, key: object) -> int:
        if isinstance(key, bool) or not isinstance(key, int | tuple | list):
            raise TypeError(
                f"cannot index a Tensor with {key!r}: a key is an ordinal, a coordinate or a tuple with slices. "
                "Pass an int or a tuple."
            )
        try:
            return self._layout.index(key)
        except ValueError as error:
            if isinstance(error.__cause__, TypeError):  # an entry of another kind, as opposed to one outside
                raise TypeError(
                    f"cannot index a Tensor with {key!r}: every entry of a coordinate is an int or is nested like the "
                    "mode. Pass ints."
                ) from error
            raise

    # -- bridges -----------------------------------------------------------------------------------------------

    def torch(self) -> torch.Tensor:
        """The same memory as a torch tensor; a nested mode becomes one dim per leaf, first leaf first.

        Errors: BufferError when the values are not in host memory (a tiled or file-backed carrier); it names what to
        call instead.
        """
        leaves = self._layout.leaves()
        flat = self._carrier._flat()
        # as_strided counts from the beginning of the storage, which a wrapped slice does not begin at.
        origin = int(flat.storage_offset()) + self._offset
        return torch.as_strided(flat, [n for n, _ in leaves], [d for _, d in leaves], origin)

    def materialize(self) -> Tensor:
        """A dense copy on an ordinary in-memory carrier, whatever the values live on; asked for, never silent.

        Shapes: the same. Errors: RuntimeError when some value is not there (an invalid tile).
        """
        if self._carrier._is_in_memory():
            return bridges.from_torch(self.torch().clone())
        copy = getattr(self._carrier, "_materialize", None)
        if copy is not None:
            result: Tensor = copy(self)
            return result
        return Tensor(CPU.wrap(read_all(self._carrier)), self._offset, self._layout)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The same memory as a numpy array; a nested mode becomes one dim per leaf.

        Errors: BufferError when the values are not in host memory; TypeError for a dtype that numpy does not have.

        >>> import strideweave as sw
        >>> sw.tensor([[1, 2], [3, 4]]).numpy().tolist()
        [[1, 2], [3, 4]]
        """
        return bridges.to_numpy(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return bridges.array_protocol(self, dtype, copy)

    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return bridges.dlpack_capsule(self, stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return bridges.dlpack_device(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bridges.reduce_tensor(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return bridges.deepcopy_tensor(self, memo)

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of facts, and the tile grid of a tiled Tensor. No value is read.

        >>> import strideweave as sw
        >>> html = sw.zeros(2, 3)._repr_html_()
        >>> "<th" in html, "<script" in html
        (True, False)
        """
        return draw_tensor(self)

    def __repr__(self) -> str:
        recorded = f", by={self._node!r}" if self._node is not None else ""
        grad = ", requires_grad=True" if self._requires_grad and self._node is None else ""
        return f"Tensor(shape={self.shape!r}, dtype={self.dtype()!r}, carrier={self._carrier!r}{grad}{recorded})"


def _has_slice(key: object) -> bool:
    return isinstance(key, slice) or (isinstance(key, tuple) and any(isinstance(k, slice) for k in key))


# Last, because bridges make Tensors.
from strideweave.tensor import bridges  # noqa: E402
