"""Facts, section c: Tensor. What the unit tests say already is named here and not said twice.

    parts of another kind, keys, elements, slices   unit/tensor/test_tensor.py
    every view and what it refuses                  unit/tensor/test_views.py, property/test_views.py
    grad, retain_grad, backward                     unit/autograd/test_backward.py
    DLPack, numpy, torch                            unit/tensor/test_{dlpack,bridges}.py

Decided otherwise in `tensors.md`: nothing is recorded unless `requires_grad` asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import strideweave as sw
from strideweave import CPU, DType, Generic, Layout, Shape, Stride, Tensor


def columns(**options: Any) -> Tensor:
    """Values 0 to 5 in the order of the ordinals of a 2 by 3 Tensor."""
    return sw.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], layout=Layout.column_major(2, 3), **options)


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ((None, "0", None), TypeError, "takes a Carrier"),
        ((CPU(0), "0", None), TypeError, "offset must be an integer"),
        ((CPU(0), -1, None), TypeError, "takes a Layout"),
        ((CPU(0), -1, Layout.leaf(9, 9)), ValueError, "Tensor offset must be non-negative"),
        ((CPU(0), 1, Layout.leaf(9, 9)), ValueError, "Tensor storage exceeds carrier size"),
    ],
)
def test_parts_are_checked_in_order(parts: tuple[Any, Any, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Tensor(*parts)


def test_storage_that_reaches_the_last_slot_is_enough() -> None:
    layout = Layout(Shape(2, 3), Stride(1, 4))
    assert Tensor(CPU(12), 2, layout)[1, 2] == 0.0
    with pytest.raises(ValueError, match="exceeds carrier size"):
        Tensor(CPU(11), 2, layout)


def test_facts_are_those_of_the_carrier() -> None:
    x = columns()
    assert (x.size(), x.dtype(), x.carrier_type(), x.is_mutable(), x.is_differentiable()) == (
        6,
        DType.Float32,
        CPU,
        True,
        True,
    )
    assert (x.offset, x.layout, x.version, x.grad, x.autograd_ctx) == (0, Layout.column_major(2, 3), 0, None, None)
    token = x._version_token()
    x[0] = 9.0
    assert x.version == x.carrier.version == 1
    assert x._version_token() != token
    x.carrier.release()
    assert not x.is_mutable()


@pytest.mark.parametrize("key", [5, (1, 2), [1, 2]])
def test_ordinal_tuple_and_list_name_the_same_element(key: Any) -> None:
    x = columns()
    assert x[key] == 5.0
    x[key] = 8.0
    assert (x.carrier[5], x.version) == (8.0, 1)


@pytest.mark.parametrize("key", [True, 1.0, "0", None, {0}, (True, 0), (0, 1.0), (0, "1"), [0, None]])
def test_key_of_another_kind_is_refused_wherever_it_stands(key: Any) -> None:
    x = columns()
    with pytest.raises(TypeError, match="cannot index a Tensor"):
        x[key]
    with pytest.raises(TypeError, match="cannot index a Tensor"):
        x[key] = 1.0
    assert x.version == 0


@pytest.mark.parametrize("key", [6, -1, (2, 0), (0, 3), (0,), (0, 0, 0), (0, (1, 1)), ()])
def test_key_outside_is_refused(key: Any) -> None:
    x = columns()
    with pytest.raises(ValueError, match="Key is not in domain of shape"):
        x[key]
    with pytest.raises(ValueError, match="Key is not in domain of shape"):
        x[key] = 1.0
    assert x.version == 0


def test_key_is_checked_before_the_carrier_and_the_value() -> None:
    x = columns()
    x.carrier.release()
    with pytest.raises(ValueError, match="Key is not in domain"):
        x[6] = "x"
    with pytest.raises(RuntimeError, match="released"):
        x[0] = "x"  # type: ignore[assignment]


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "slice": lambda x: x[:, 1:],
    "int and slice": lambda x: x[1, :],
    "rearrange": lambda x: sw.rearrange(x, "a b -> b a"),
    "permute": lambda x: sw.permute(x, 1, 0),
    "reshape": lambda x: sw.reshape(x, (3, 2)),
    "as_strided": lambda x: sw.as_strided(x, Shape(2, 2), Stride(1, 2)),
    "broadcast_to": lambda x: sw.broadcast_to(sw.unsqueeze(x, 2), Shape(2, 3, 4)),
    "broadcast_in_dim": lambda x: sw.broadcast_in_dim(x, Shape(2, 3, 4), (0, 1)),
    "squeeze": lambda x: sw.squeeze(x[:, 1:2], 1),
    "unsqueeze": lambda x: sw.unsqueeze(x, 0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_view_is_another_tensor_over_the_same_carrier_whose_version_stays(view: Callable[[Tensor], Any]) -> None:
    x = columns()
    seen = view(x)
    assert isinstance(seen, Tensor)
    assert seen is not x
    assert seen.carrier is x.carrier
    assert x.version == 0


def test_int_drops_its_mode_and_slice_keeps_it() -> None:
    x: Any = columns()
    assert (x[1, :].shape, x[1:2, :].shape, x[:, 2].shape) == (Shape(3), Shape(1, 3), Shape(2))
    assert sw.to_list(x[1, ::3]) == [1.0]


OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "+": (lambda a, b: a + b, sw.add),
    "-": (lambda a, b: a - b, sw.sub),
    "*": (lambda a, b: a * b, sw.mul),
    "/": (lambda a, b: a / b, sw.div),
    "**": (lambda a, b: a**b, sw.pow),
}


@pytest.mark.parametrize(("written", "meant"), OPERATORS.values(), ids=OPERATORS.keys())
def test_operator_is_its_operation_with_a_number_on_either_side(
    written: Callable[[Any, Any], Any], meant: Callable[[Any, Any], Any]
) -> None:
    x = sw.tensor([1.0, 2.0, 4.0])
    for a, b in ((x, x), (x, 3), (3, x), (x, 0.5), (0.5, x)):
        assert sw.to_list(written(a, b)) == sw.to_list(meant(a, b))
    for other in ({1.0}, None, 1j):
        with pytest.raises(TypeError, match="unsupported operand"):
            written(x, other)


def test_minus_and_at_are_neg_and_matmul() -> None:
    x = columns()
    assert sw.to_list(-x) == sw.to_list(sw.neg(x))
    assert sw.to_list(x @ sw.permute(x, 1, 0)) == sw.to_list(sw.matmul(x, sw.permute(x, 1, 0)))
    with pytest.raises(TypeError, match="unsupported operand"):
        x @ 2  # type: ignore[operator]


def test_signatures_are_those_of_the_facts() -> None:
    assert list(inspect.signature(Tensor).parameters)[:3] == ["carrier", "offset", "layout"]
    backward = inspect.signature(Tensor.backward).parameters
    assert [(n, p.default) for n, p in backward.items()][1:] == [("gradient", None), ("retain_graph", False)]
    assert inspect.signature(Tensor.retain_grad).parameters["retain"].default is True
    traversal = inspect.signature(Tensor.backwards_traversal).parameters
    assert list(traversal) == ["gradient", "operation", "retain_graph"]


def test_dlpack_is_of_host_memory() -> None:
    assert columns().__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="materialize"):
        Tensor(Generic([1.0], dtype=DType.Float32), 0, Layout.leaf(1, 1)).__dlpack__()
