"""`sw.nn`: modules and optimizers do what torch's do, step for step."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import DType, Generic, Layout, Tensor


def twins(seed: int = 0) -> tuple[sw.nn.Sequential, torch.nn.Sequential]:
    torch.manual_seed(seed)
    ours = sw.nn.Sequential(sw.nn.Linear(3, 5), sw.nn.Tanh(), sw.nn.Linear(5, 2))
    torch.manual_seed(seed)
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    return ours, theirs


def test_linear_draws_the_weights_that_torch_draws() -> None:
    ours, theirs = twins()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine.torch(), other.detach())


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (lambda p: sw.nn.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            lambda p: sw.nn.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (lambda p: sw.nn.AdamW(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
        (
            lambda p: sw.nn.AdamW(p, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1),
        ),
    ],
)
def test_twenty_steps_equal_torch(mine: Callable[[Any], Any], other: Callable[[Any], Any]) -> None:
    ours, theirs = twins()
    my_optimizer, their_optimizer = mine(ours.parameters()), other(theirs.parameters())
    inputs, wanted = torch.randn(8, 3), torch.randn(8, 2)
    for _ in range(20):
        my_optimizer.zero_grad()
        loss = sw.nn.MSELoss()(ours(sw.from_torch(inputs)), sw.from_torch(wanted))
        loss.backward()
        my_optimizer.step()
        their_optimizer.zero_grad()
        torch.nn.functional.mse_loss(theirs(inputs), wanted).backward()
        their_optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.torch(), q.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (sw.nn.ReLU(), torch.relu),
        (sw.nn.Sigmoid(), torch.sigmoid),
        (sw.nn.Tanh(), torch.tanh),
        (sw.nn.GELU(), torch.nn.functional.gelu),
        (sw.nn.SiLU(), torch.nn.functional.silu),
        (sw.nn.Softplus(), torch.nn.functional.softplus),
        (sw.nn.ELU(0.5), lambda x: torch.nn.functional.elu(x, 0.5)),
        (sw.nn.LeakyReLU(0.2), lambda x: torch.nn.functional.leaky_relu(x, 0.2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_activation_equals_torch(layer: sw.Module, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(layer(sw.from_torch(x)).torch(), function(x))


def test_cross_entropy_loss_equals_torch() -> None:
    logits, targets = torch.randn(6, 4), torch.randint(0, 4, (6,))
    loss = sw.nn.CrossEntropyLoss()(sw.from_torch(logits), sw.from_torch(targets))
    torch.testing.assert_close(torch.tensor(sw.item(loss)), torch.nn.functional.cross_entropy(logits, targets))


def test_step_advances_the_version_once_so_that_saved_weights_are_noticed() -> None:
    p = sw.Parameter(sw.tensor([2.0]))
    loss = p * p
    loss.backward(retain_graph=True)
    before = p.version
    sw.nn.SGD([p], lr=0.1).step()
    assert p.version == before + 1
    with pytest.raises(RuntimeError, match="modified in-place"):
        loss.backward()


def test_step_leaves_parameters_without_a_gradient() -> None:
    p, q = sw.Parameter(sw.tensor([2.0])), sw.Parameter(sw.tensor([3.0]))
    sw.reduce_sum(p * p).backward()
    sw.nn.AdamW([p, q]).step()
    assert sw.to_list(q) == [3.0]
    assert q.version == 0


def test_optimizer_moves_parameters_on_the_reference_carrier() -> None:
    p = sw.Parameter(Generic([1.0, 2.0], dtype=DType.Float32))
    sw.reduce_sum(p * p).backward()
    sw.nn.SGD([p], lr=0.25).step()
    assert sw.to_list(p) == [0.5, 1.0]
    assert p.version == 1


def test_optimizer_refuses_bad_arguments() -> None:
    p = sw.Parameter(sw.ones(1))
    with pytest.raises(ValueError, match="no parameters"):
        sw.nn.SGD([], lr=0.1)
    with pytest.raises(TypeError, match="takes Parameters"):
        sw.nn.SGD([sw.ones(1)], lr=0.1)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="learning rate"):
        sw.nn.AdamW([p], lr=-1)
    with pytest.raises(ValueError, match="betas"):
        sw.nn.AdamW([p], betas=(1.0, 0.9))
    frozen = sw.Parameter(sw.CPU(1, mutable=False))
    frozen.grad = sw.ones(1)
    with pytest.raises(RuntimeError, match="not mutable"):
        sw.nn.SGD([frozen], lr=0.1).step()


def test_module_finds_parameters_in_lists_tuples_dicts_once() -> None:
    class Nest(sw.Module):
        def __init__(self) -> None:
            shared = sw.nn.Linear(1, 1)
            self.items = [shared, (sw.nn.Linear(1, 1, bias=False),)]
            self.named = {"again": shared, "own": sw.Parameter(sw.ones(2))}
            self.plain = sw.ones(3)

        def forward(self, x: Tensor) -> Tensor:
            return x

    names = [name for name, _ in Nest().named_parameters()]
    assert names == ["items.0.weight", "items.0.bias", "items.1.0.weight", "named.own"]


def test_state_loads_by_name_or_not_at_all() -> None:
    ours, _ = twins(0)
    other, _ = twins(1)
    other.load_state_dict(ours.state_dict())
    x = sw.rand(4, 3)
    assert sw.to_list(ours(x)) == sw.to_list(other(x))
    state = dict(ours.state_dict())
    state["layers.0.weight"] = sw.ones(2, 2)
    kept = sw.to_list(other.state_dict()["layers.2.weight"])
    with pytest.raises(ValueError, match=r"layers\.0\.weight"):
        other.load_state_dict(state)
    del state["layers.0.weight"]
    with pytest.raises(KeyError, match=r"layers\.0\.weight"):
        other.load_state_dict(state)
    assert sw.to_list(other.state_dict()["layers.2.weight"]) == kept


def test_parameter_is_a_leaf_over_given_storage_and_survives_copies() -> None:
    storage = sw.tensor([1.0, 2.0, 3.0, 4.0])
    p = sw.Parameter(storage.carrier, 1, Layout.column_major(3), name="tail")
    assert sw.to_list(p) == [2.0, 3.0, 4.0]
    assert p.requires_grad
    assert p.is_leaf
    for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert isinstance(twin, sw.Parameter)
        assert twin.name == "tail"
        assert sw.to_list(twin) == [2.0, 3.0, 4.0]
        assert twin.carrier is not p.carrier
    with pytest.raises(TypeError, match="the Tensor has both"):
        sw.Parameter(storage, 1)
    with pytest.raises(TypeError, match="Tensor or a Carrier"):
        sw.Parameter([1.0])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not available"):
        sw.Parameter(sw.tensor([1, 2]))


def test_linear_refuses_no_features() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        sw.nn.Linear(0, 3)
