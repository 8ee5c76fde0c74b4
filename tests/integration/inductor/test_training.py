"""Models train on the card as they train on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A transformer block: attention and a feed-forward part, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.feed = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.mix(self.first(x)).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.feed(self.second(x))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.LayerNorm(50), nn.Linear(50, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )


@pytest.mark.parametrize(("make", "size"), [(perceptron, (8, 20)), (Block, (2, 16, 32)), (convolutional, (2, 3, 8, 8))])
def test_three_steps_of_training_equal_the_cpu(make: Callable[[], nn.Module], size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    host = make()
    torch.manual_seed(0)
    card = make().to("spyre")
    x = torch.randn(*size)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (host, card)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = torch.compile(card, dynamic=False)
        for _ in range(3):
            losses = []
            for model, data, optimizer in ((host, x, optimizers[0]), (step, x.to("spyre"), optimizers[1])):
                loss = model(data).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().cpu())
    torch.testing.assert_close(losses[1], losses[0])
    for a, b in zip(host.parameters(), card.parameters(), strict=True):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-4, atol=1e-5)


def test_backend_by_name_takes_tensors_in_host_memory() -> None:
    from strideweave.inductor import spyre_backend

    model, x = perceptron(), torch.randn(8, 20)
    want = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.compile(model, backend=spyre_backend)(x)
    assert got.device.type == "cpu"
    torch.testing.assert_close(got, want)
    want.sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    got.sum().backward()
    for p, g in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, g)


def test_backend_copies_back_what_is_changed_in_place() -> None:
    from strideweave.inductor import spyre_backend

    x = torch.zeros(4, 5)
    torch.compile(lambda x: x.add_(torch.ones(5)), backend=spyre_backend)(x)
    assert torch.equal(x, torch.ones(4, 5))
