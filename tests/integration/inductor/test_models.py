"""Whole models compiled for the card: forward, and a step of training, equal the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from strideweave.inductor.report import reporting
from strideweave.spyre import config
from support.compiled import compiled


class Rope(nn.Module):
    """Turns pairs of features by angles that grow with the position."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        steps = torch.arange(half, device=x.device, dtype=torch.float32)
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * 10000.0 ** (-steps / half)
        cos, sin = (torch.cat([f(angles)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, dim: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)
        self.before, self.behind, self.rope = nn.RMSNorm(dim), nn.RMSNorm(dim), Rope()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, dim))
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, words: int = 100, dim: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.blocks = nn.Sequential(LlamaBlock(dim), LlamaBlock(dim))
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Experts(nn.Module):
    """A router and four experts, as mixtures have them: every token goes to the two that it scores highest."""

    def __init__(self, dim: int = 32, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(dim, count, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.randn(count, dim, 64) / 6),
            nn.Parameter(torch.randn(count, 64, dim) / 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        gates = torch.zeros_like(self.router(x)).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        each = torch.einsum("tef,efd->ted", F.silu(torch.einsum("td,edf->tef", x, self.up)), self.down)
        return x + torch.einsum("ted,te->td", each, gates)


class Mixture(nn.Module):
    def __init__(self, words: int, dim: int = 64) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(words, dim), Experts(dim)
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embedding(tokens).flatten(0, 1)).unflatten(0, tokens.shape))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 70), nn.GELU(), nn.LayerNorm(70), nn.Linear(70, 5))


def tokens(words: int = 100) -> torch.Tensor:
    return torch.randint(0, words, (2, 12), generator=torch.Generator().manual_seed(1))


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(2))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (mlp, lambda: drawn(6, 20)),
    "llama": (Llama, tokens),
    "vit": (Vit, lambda: drawn(2, 3, 16, 16)),
    "experts": (Experts, lambda: drawn(9, 32)),
}


def step(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    out = model(data)
    return (out.float() ** 2).mean() + out.float().sum() / 100


@pytest.mark.parametrize("name", MODELS)
def test_training_step_equals_the_cpu(name: str) -> None:
    make, data = MODELS[name]
    torch.manual_seed(0)
    host = make()
    card = copy.deepcopy(host).to("spyre")
    losses = []
    for model, inputs, run in ((host, data(), step), (card, data().to("spyre"), compiled(step))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            loss = run(model, inputs)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for (key, wanted), (_, found) in zip(host.named_parameters(), card.named_parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=2e-3, atol=2e-4, msg=key)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_forward_in_narrow_floats_is_as_close_as_the_cpu_is(name: str, dtype: torch.dtype) -> None:
    make, data = MODELS[name]
    torch.manual_seed(0)
    exact = make()
    narrow = copy.deepcopy(exact).to(dtype)
    inputs = data().to(dtype) if data().is_floating_point() else data()
    with torch.no_grad():
        wanted = exact(inputs.float() if inputs.is_floating_point() else inputs)
        found = compiled(copy.deepcopy(narrow).to("spyre"))(inputs.to("spyre")).cpu().float()
        on_cpu = narrow(inputs).float()
    # Both round on their way; neither may be much further from what Float32 gives.
    allowed = 3 * (on_cpu - wanted).abs().max() + 1e-2
    assert (found - wanted).abs().max() <= allowed


def transformers_models() -> dict[str, Callable[[], Any]]:
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    shape: dict[str, Any] = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "use_cache": False,
    }
    return {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=64)),
        "mixtral": lambda: MixtralForCausalLM(
            MixtralConfig(**shape, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2)
        ),
        "qwen3_moe": lambda: Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **shape,
                intermediate_size=64,
                moe_intermediate_size=48,
                num_experts=4,
                num_experts_per_tok=2,
                head_dim=8,
            )
        ),
    }


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3_moe"])
def test_models_of_transformers_train_as_on_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    host = transformers_models()[name]()
    card = copy.deepcopy(host).to("spyre")
    words = tokens()
    wanted = host(words, labels=words)
    wanted.loss.backward()
    run = torch.compile(card, dynamic=False)
    found = run(words.to("spyre"), labels=words.to("spyre"))
    found.loss.backward()
    torch.testing.assert_close(found.logits.cpu(), wanted.logits, rtol=1e-3, atol=1e-4)
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-4)
    for (key, one), (_, other) in zip(host.named_parameters(), card.named_parameters(), strict=True):
        if one.grad is not None:
            assert other.grad is not None, key
            torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=2e-3, atol=2e-4, msg=key)


@pytest.mark.parametrize(
    ("make", "words", "limit"),
    [(Llama, 769, 131072), (Llama, 1369, 200000), (Mixture, 2004, 300000), (Mixture, 4096, 600000)],
)
def test_vocabulary_head_is_tiled_in_forward_and_backward(
    make: Callable[[int], nn.Module], words: int, limit: int
) -> None:
    # 49159, 87616, 128256 and 262144 rows, 64 times smaller, with a limit that only the head's weight is above.
    torch.manual_seed(0)
    host: Any = make(words)
    card = copy.deepcopy(host).to("spyre")
    data, targets = tokens(words), tokens(words).flatten()

    def loss_of(model: nn.Module, data: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(data).flatten(0, 1), targets)

    with config.patch(ignore_span_overflow_hints=False, max_span_bytes=limit, sencores=4), reporting() as report:
        loss = compiled(loss_of)(card, data.to("spyre"), targets.to("spyre"))
        loss.backward()
    wanted = loss_of(host, data, targets)
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    torch.testing.assert_close(card.head.weight.grad.cpu(), host.head.weight.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(card.embedding.weight.grad.cpu(), host.embedding.weight.grad, rtol=1e-3, atol=1e-5)
    tiled = [row.op for row in report.rows if row.loops]
    assert "batchmatmul" in tiled
    assert not [o for row in report.rows for o in row.operands if o.exceeds]
