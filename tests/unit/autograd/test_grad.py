"""`grad`: products with the Jacobian as values. Facts, section h."""

from __future__ import annotations

import pytest
import torch

import strideweave as sw
from strideweave import Layout, Shape, Tensor


def leaf(values: torch.Tensor) -> Tensor:
    return sw.from_torch(values.clone()).requires_grad_()


def test_grad_gives_values_and_touches_no_grad() -> None:
    x, w = leaf(torch.tensor([1.0, 2.0])), leaf(torch.tensor([3.0, 4.0]))
    gx, gw = sw.grad(sw.reduce_sum(x * x * w), [x, w])
    assert gx is not None
    assert sw.to_list(gx) == [6.0, 16.0]
    assert gw is not None
    assert sw.to_list(gw) == [1.0, 4.0]
    assert x.grad is None
    assert w.grad is None


def test_grad_of_what_an_operation_made() -> None:
    x = leaf(torch.tensor([2.0]))
    y = x * 3
    (gy,) = sw.grad(y * y, y)
    assert gy is not None
    assert sw.to_list(gy) == [12.0]


def test_grad_with_cotangents_equals_torch() -> None:
    a, b, v = torch.randn(3, 4), torch.randn(4), torch.randn(3, 4)
    x, y = leaf(a), leaf(b)
    gx, gy = sw.grad(sw.relu(x * y), (x, y), sw.from_torch(v))
    ta, tb = a.requires_grad_(), b.requires_grad_()
    wanted = torch.autograd.grad(torch.relu(ta * tb), (ta, tb), v)
    assert gx is not None
    assert gy is not None
    torch.testing.assert_close(gx.torch(), wanted[0])
    torch.testing.assert_close(gy.torch(), wanted[1])


def test_batched_grad_is_the_whole_jacobian() -> None:
    x = leaf(torch.tensor([1.0, 2.0, 3.0]))
    y = x * x
    eye = sw.from_torch(torch.eye(3))
    (jacobian,) = sw.grad(y, x, eye, batched=True)
    assert jacobian is not None
    assert jacobian.shape == Shape(3, 3)
    assert sw.to_list(jacobian) == [[2.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 6.0]]
    with pytest.raises(RuntimeError, match="second time"):
        sw.grad(y, x, eye, batched=True)


def test_batched_grad_on_generic_equals_cpu() -> None:
    x = Tensor(sw.Generic([1.0, 2.0], dtype=sw.DType.Float32), 0, Layout.column_major(2), requires_grad=True)
    cotangents = Tensor(sw.Generic([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=sw.DType.Float32), 0, Layout.row_major(3, 2))
    (rows,) = sw.grad(x * x, x, cotangents, batched=True)
    assert rows is not None
    assert rows.carrier_type() is sw.Generic
    assert sw.to_list(rows) == [[2.0, 0.0], [0.0, 4.0], [2.0, 4.0]]


def test_batched_cotangents_are_checked() -> None:
    x = leaf(torch.ones(3))
    y = x * 2
    with pytest.raises(TypeError, match="first mode counts"):
        sw.grad(y, x, batched=True)
    with pytest.raises(ValueError, match="shape of the output"):
        sw.grad(y, x, sw.ones(2, 4), batched=True)
    with pytest.raises(ValueError, match="slot of its own"):
        sw.grad(y, x, sw.broadcast_to(sw.ones(1, 3), (2, 3)), batched=True)


def test_grad_for_an_input_that_does_not_matter() -> None:
    x, other = leaf(torch.ones(2)), leaf(torch.ones(2))
    y = sw.reduce_sum(x * 2)
    with pytest.raises(RuntimeError, match="does not depend"):
        sw.grad(y, [x, other])
    gx, missing = sw.grad(y, [x, other], allow_unused=True)
    assert gx is not None
    assert missing is None


def test_grad_keeps_the_graph_when_asked() -> None:
    x = leaf(torch.tensor([2.0]))
    y = x * x
    sw.grad(y, x, retain_graph=True)
    sw.grad(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        sw.grad(y, x)


def test_grad_refuses_what_requires_nothing_and_what_is_no_tensor() -> None:
    x = leaf(torch.ones(1))
    with pytest.raises(RuntimeError, match="not available"):
        sw.grad(sw.ones(1), x)
    with pytest.raises(RuntimeError, match="not available"):
        sw.grad(x * 2, sw.ones(1))
    with pytest.raises(TypeError, match="takes Tensors"):
        sw.grad(x * 2, [torch.ones(1)])  # type: ignore[list-item]
    y = leaf(torch.ones(2))
    with pytest.raises(ValueError, match="requires a gradient"):
        sw.grad(y * 2, y)
