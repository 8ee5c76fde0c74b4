"""Operations on Evictable: lowered to the primary, wrapped back, gradients included."""

from __future__ import annotations

import pytest
import torch

import strideweave as sw
from strideweave import CPU, DType, FileBacked, Generic, Layout, Tensor
from strideweave.carriers.evictable import Evictable


def evictable(values: torch.Tensor) -> Tensor:
    carrier = Evictable(CPU.wrap(values.reshape(-1).clone()), FileBacked(dtype=DType.from_torch(values.dtype)))
    return Tensor(carrier, 0, Layout.row_major(*values.shape))


def tiers_of(tensor: Tensor) -> Evictable:
    assert isinstance(tensor.carrier, Evictable)
    return tensor.carrier


def test_operation_on_an_evicted_value_promotes_it_and_gives_an_evictable() -> None:
    values = torch.randn(2, 3)
    x = evictable(values)
    tiers_of(x).evict()
    y = sw.reduce_sum(x * 2 + 1, axis=1)
    assert type(tiers_of(y).primary) is CPU
    assert type(tiers_of(y).secondary) is FileBacked
    assert not tiers_of(y).is_evicted()
    assert not tiers_of(x).is_evicted()
    tiers_of(y).evict()
    torch.testing.assert_close(y.materialize().torch(), (values * 2 + 1).sum(1))


def test_backward_through_evictable_operations_equals_torch_and_survives_eviction() -> None:
    values = torch.randn(2, 3)
    x = evictable(values).requires_grad_()
    y = sw.reduce_sum(x * x)
    tiers_of(x).evict()
    y.backward()
    assert x.grad is not None
    assert x.grad.carrier_type() is Evictable
    torch.testing.assert_close(x.grad.materialize().torch(), 2 * values)


def test_views_share_the_evictable() -> None:
    x = evictable(torch.arange(6.0).reshape(2, 3))
    view = sw.permute(x, 1, 0)
    assert view.carrier is x.carrier
    assert sw.reduce_sum(view, axis=0).materialize().torch().tolist() == [3.0, 12.0]


def test_primaries_of_two_classes_are_refused_and_neither_stays_in_use() -> None:
    a = evictable(torch.ones(2))
    b = Tensor(Evictable(Generic([1.0, 1.0], dtype=DType.Float32), FileBacked()), 0, Layout.column_major(2))
    with pytest.raises(TypeError, match="Tensor backing carriers must match"):
        sw.add(a, b)
    tiers_of(a).evict()


def test_evictable_beside_its_primary_class_is_refused() -> None:
    with pytest.raises(TypeError, match="Tensor backing carriers must match"):
        sw.add(evictable(torch.ones(2)), sw.ones(2))
