"""Parameter: a leaf that a Module finds and an optimizer changes."""

from __future__ import annotations

import copy
from typing import Any, SupportsIndex, final

from strideweave.carriers.carrier import Carrier
from strideweave.layout import Layout
from strideweave.tensor.tensor import Tensor


@final
class Parameter(Tensor):
    """A Tensor that requires gradients, over the storage of another Tensor or of a carrier.

    Errors: TypeError for neither of these, or an offset and layout beside a Tensor; RuntimeError for whole numbers.

    >>> import strideweave as sw
    >>> p = sw.Parameter(sw.zeros(2, 3), name="weight")
    >>> p.requires_grad, p.is_leaf, p.name
    (True, True, 'weight')
    """

    __slots__ = ("name",)

    name: str | None

    def __init__(
        self,
        tensor_or_carrier: Tensor | Carrier,
        offset: int | None = None,
        layout: Layout | None = None,
        *,
        name: str | None = None,
    ) -> None:
        if isinstance(tensor_or_carrier, Tensor):
            if offset is not None or layout is not None:
                raise TypeError(
                    f"cannot make a Parameter of {tensor_or_carrier!r} with an offset or a layout: the Tensor has "
                    "both. Pass the Tensor alone, or its carrier."
                )
            super().__init__(
                tensor_or_carrier.carrier, tensor_or_carrier.offset, tensor_or_carrier.layout, requires_grad=True
            )
        elif isinstance(tensor_or_carrier, Carrier):
            chosen = Layout.column_major(tensor_or_carrier.size()) if layout is None else layout
            super().__init__(tensor_or_carrier, offset or 0, chosen, requires_grad=True)
        else:
            raise TypeError(
                f"cannot make a Parameter of {type(tensor_or_carrier).__name__}: it takes a Tensor or a Carrier. Pass "
                "one."
            )
        self.name = name

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return _again, (self.detach(), self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copied = Parameter(copy.deepcopy(self.detach(), memo), name=self.name)
        copied.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = copied
        return copied


def _again(tensor: Tensor, name: str | None) -> Parameter:
    return Parameter(tensor, name=name)
