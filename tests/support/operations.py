"""What the tests of every operation share: the same values on many layouts, values back, gradients three ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import strideweave as sw
from strideweave.operation.alignment import strides_dense, with_strides
from strideweave.tensor.copying import strided, values_of

EPSILON = 1e-6


def place(values: torch.Tensor, layout: sw.Layout) -> sw.Tensor:
    """A CPU Tensor of `layout` whose values are those of `values`, one dim per top-level mode, first mode fastest
    inside a nested one."""
    dtype = sw.DType.from_torch(values.dtype)
    placed = sw.Tensor(sw.CPU(layout.cosize, dtype=dtype), 0, layout)
    sizes = [[n for n, _ in mode.leaves()] for mode in layout]
    order, begin = [], 0
    for mode in sizes:
        order.extend(range(begin + len(mode) - 1, begin - 1, -1))
        begin += len(mode)
    leaves = values.reshape([n for mode in sizes for n in reversed(mode)])
    placed.torch().copy_(leaves.permute(order))  # reversing the leaves of every mode undoes itself
    return placed


def dense(tensor: sw.Tensor) -> torch.Tensor:
    """The values as a fresh torch tensor, one dim per top-level mode, first mode fastest inside a nested one."""
    found = values_of(tensor.detach())
    order, sizes, begin = [], [], 0
    for mode in tensor.layout:
        count = len(mode.leaves())
        order.extend(range(begin + count - 1, begin - 1, -1))
        sizes.append(mode.size)
        begin += count
    return found.permute(order).reshape(sizes).clone()


def nested(values: torch.Tensor) -> sw.Tensor:
    """The values on a layout whose every mode is split in two leaves that do not merge."""
    sizes = []
    for n in values.shape:
        inner = next((d for d in range(2, n) if n % d == 0), 1)
        sizes.append((inner, n // inner))
    shape = sw.Shape(sizes)
    extents = shape.leaves()
    strides, step = [0] * len(extents), 1
    for k in [*range(1, len(extents), 2), *range(0, len(extents), 2)]:
        strides[k] = step
        step *= extents[k]
    return place(values, with_strides(shape, strides))


def gapped(values: torch.Tensor) -> sw.Tensor:
    """The values on every second slot of a larger carrier, from slot 3 on."""
    strides, step = [0] * values.dim(), 2
    for k in reversed(range(values.dim())):
        strides[k] = step
        step *= values.shape[k] + 1
    layout = with_strides(sw.Shape(*values.shape), strides)
    carrier = sw.CPU(layout.cosize + 5, dtype=sw.DType.from_torch(values.dtype))
    strided(carrier._flat(), layout, 3).copy_(values)
    return sw.Tensor(carrier, 3, layout)


def variants(values: torch.Tensor) -> list[tuple[str, sw.Tensor]]:
    """The same values on layouts of every kind, each with a label: row-major, first mode fastest, with gaps and an
    offset, with nested modes, and with stride 0 where the values repeat."""
    contiguous = values.contiguous()
    order = list(reversed(range(values.dim())))
    permuted = contiguous.permute(order).contiguous().permute(order)
    made = [
        ("contiguous", sw.from_torch(contiguous.clone())),
        ("permuted", sw.from_torch(permuted.clone(memory_format=torch.preserve_format))),
        ("gapped", gapped(values)),
    ]
    if values.dim():
        made.append(("nested", nested(values)))
    repeats = [bool(torch.equal(values, values.narrow(k, 0, 1).expand_as(values))) for k in range(values.dim())]
    if any(repeats):
        seen = values.clone()
        for k, repeat in enumerate(repeats):
            if repeat:
                seen = seen.narrow(k, 0, 1)
        made.append(("broadcast", sw.from_torch(seen.contiguous().expand_as(values))))
    return made


def on_generic(tensor: sw.Tensor) -> sw.Tensor:
    """The same values on the same layout, on the reference carrier."""
    span = torch.empty(tensor.layout.cosize, dtype=tensor.dtype().torch_dtype)
    tensor.carrier._read_runs([(tensor.offset, span)])
    return sw.Tensor(sw.Generic(span.tolist(), dtype=tensor.dtype()), 0, tensor.layout)


def leaf(tensor: sw.Tensor) -> sw.Tensor:
    """The same Tensor as a leaf that requires a gradient."""
    return tensor.detach().requires_grad_()


def cotangent_of(output: sw.Tensor, *, seed: int = 0) -> sw.Tensor:
    """Random values of the layout of `output`, of its dtype and carrier class."""
    layout = output.layout if output.layout.is_injective else strides_dense(output.shape)
    drawn = torch.randn([mode.size for mode in layout], generator=torch.Generator().manual_seed(seed))
    made = place(drawn.to(output.dtype().torch_dtype), layout)
    return on_generic(made) if output.carrier_type() is sw.Generic else made


def gradients(
    function: Callable[..., sw.Tensor], *tensors: sw.Tensor, cotangent: sw.Tensor | None = None
) -> list[torch.Tensor]:
    """The gradient of every tensor as `dense` values, for a random cotangent unless one is given."""
    leaves = [leaf(tensor) for tensor in tensors]
    output = function(*leaves)
    start = cotangent_of(output) if cotangent is None else cotangent
    return [dense(found) for found in sw.grad(output, leaves, start) if found is not None]


def check_gradients(
    function: Callable[..., sw.Tensor],
    *tensors: sw.Tensor,
    torch_function: Callable[..., torch.Tensor] | None = None,
    numeric: bool = True,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Nothing, when the gradients of `function` are those of central differences and of torch.

    `tensors` are Float64, of any layout; `torch_function` takes their `dense` values. Not near a kink: there central
    differences are no gradient, and `numeric=False` leaves them out.
    """
    output = function(*[tensor.detach() for tensor in tensors])
    cotangent = cotangent_of(output)
    found = gradients(function, *tensors, cotangent=cotangent)
    assert len(found) == len(tensors), "every tensor has a gradient"
    weights = dense(cotangent)
    if torch_function is not None:
        inputs = [dense(tensor).requires_grad_() for tensor in tensors]
        result = torch_function(*inputs)
        torch.testing.assert_close(dense(output), result.detach(), rtol=rtol, atol=atol, equal_nan=True)
        result.backward(weights)
        for mine, theirs in zip(found, inputs, strict=True):
            torch.testing.assert_close(mine, theirs.grad, rtol=rtol, atol=atol, equal_nan=True)
    if numeric:
        for k, mine in enumerate(found):
            differences = _differences(function, tensors, k, weights)
            torch.testing.assert_close(mine, differences, rtol=1e-4, atol=1e-5)


def _differences(
    function: Callable[..., sw.Tensor], tensors: Sequence[sw.Tensor], k: int, weights: torch.Tensor
) -> torch.Tensor:
    """The derivative of the weighted sum of the results with respect to tensor `k`, by central differences."""
    assert tensors[k].dtype() is sw.DType.Float64, "central differences need Float64"
    values, layout = dense(tensors[k]), strides_dense(tensors[k].shape)
    slopes = torch.empty(values.numel(), dtype=torch.float64)
    flat = values.reshape(-1)
    for j in range(flat.numel()):
        ends = []
        for step in (EPSILON, -EPSILON):
            moved = flat.clone()
            moved[j] += step
            operands = [t.detach() for t in tensors]
            operands[k] = place(moved.reshape(values.shape), layout)
            ends.append((dense(function(*operands)) * weights).sum())
        slopes[j] = (ends[0] - ends[1]) / (2 * EPSILON)
    return slopes.reshape(values.shape)
