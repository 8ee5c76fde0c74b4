"""Programs that torch.compile really makes, run point by point: the interpreter gives what the executor gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from strideweave.inductor import runtime, spyre_hint
from strideweave.spyre import config
from strideweave.spyre.interpreter import interpret
from strideweave.spyre.memory import memory
from strideweave.spyre.specs import Program
from support.compiled import compiled, on_card

h = torch.float16


class Interpreted:
    """Takes the place of a prepared program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pool = memory().allocate(program.pool_nbytes) if program.pool_nbytes else 0

    def run(self, addresses: Sequence[int]) -> None:
        interpret(self.program, addresses, memory().bytes, self.pool)
        if self.pool:
            memory().free(self.pool)
            self.pool = memory().allocate(self.program.pool_nbytes)


def tiled(f: Callable[..., Any], names: Sequence[str], **tiles: int) -> Callable[..., Any]:
    """The function in nested blocks of hints, the first outermost."""

    def run(*args: Any) -> Any:
        with spyre_hint(named_dims=names):
            if not tiles:
                return f(*args)
            (dim, count), *rest = tiles.items()
            with spyre_hint(num_tiles_per_dim={dim: count}):
                return tiled(f, names, **dict(rest))(*args)

    return run


def randn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(len(size) + sum(size))).to(dtype)


CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "add": (lambda x, y: x + y, [randn(3, 40, dtype=h), randn(3, 40, dtype=h)]),
    "broadcast": (lambda x, y: x * y, [randn(3, 40), randn(40)]),
    "softmax": (lambda x: torch.softmax(x, -1), [randn(3, 40)]),
    "layer norm": (lambda x: F.layer_norm(x, (40,)), [randn(3, 40)]),
    "matmul": (lambda x, y: x @ y, [randn(3, 20), randn(20, 35)]),
    "linear": (F.linear, [randn(2, 20), randn(35, 20), randn(35)]),
    "cat": (lambda x, y: torch.cat([x, y], 1), [randn(3, 10), randn(3, 33)]),
    "slice": (lambda x: x[1:, 3:30:2] + 1, [randn(4, 40)]),
    "flip": (lambda x: x.flip(1) * 2, [randn(3, 40)]),
    "permute": (lambda x: x.permute(2, 0, 1) + 1, [randn(3, 4, 20)]),
    "gather": (lambda x, i: x.gather(1, i), [randn(3, 40), torch.randint(0, 40, (3, 5))]),
    "embedding": (lambda w, i: F.embedding(i, w), [randn(20, 40), torch.randint(0, 20, (6,))]),
    "index put": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        [randn(8, 20), torch.tensor([1, 1, 7]), randn(3, 20)],
    ),
    "argmax": (lambda x: x.argmax(1), [randn(4, 40)]),
    "var": (lambda x: x.var(0), [randn(9, 20)]),
    "pad": (lambda x: F.pad(x, (3, 2, 1, 0)), [randn(3, 30)]),
    "where": (lambda x, y: torch.where(x > 0, x, y), [randn(3, 40), randn(3, 40)]),
    "triangle": (lambda x: torch.tril(x), [randn(20, 20)]),
    "max over all": (lambda x: x.max(), [randn(7, 33)]),
    "conv": (lambda x, w: F.conv1d(x, w), [randn(1, 2, 12), randn(3, 2, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_program_means_what_it_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs = CASES[name]
    found = compiled(function)(*(on_card(i) for i in inputs)).cpu()
    torch._dynamo.reset()
    monkeypatch.setattr(runtime, "prepare", Interpreted)
    meant = compiled(function)(*(on_card(i) for i in inputs)).cpu()
    torch.testing.assert_close(found, meant, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(meant, function(*inputs), rtol=1e-4, atol=1e-5)


HINTED: dict[str, tuple[Callable[..., Any], list[torch.Tensor], list[str], dict[str, int]]] = {
    "rows": (lambda x, y: (x + y) * x, [randn(6, 40), randn(6, 40)], ["r", "c"], {"r": 3}),
    "rows and columns": (lambda x: (x * 2).relu(), [randn(4, 128, dtype=h)], ["r", "c"], {"r": 2, "c": 2}),
    "three levels": (lambda x: (x + 1) * x, [randn(4, 6, 64)], ["a", "b", "c"], {"a": 2, "b": 3, "c": 2}),
    "softmax by rows": (lambda x: torch.softmax(x, -1), [randn(6, 40)], ["r", "c"], {"r": 3}),
}


@pytest.mark.parametrize("name", HINTED)
def test_tiled_program_means_what_it_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs, names, tiles = HINTED[name]
    hinted = tiled(function, names, **tiles)
    found = compiled(hinted)(*(on_card(i) for i in inputs)).cpu()
    torch._dynamo.reset()
    monkeypatch.setattr(runtime, "prepare", Interpreted)
    meant = compiled(hinted)(*(on_card(i) for i in inputs)).cpu()
    torch.testing.assert_close(found, meant, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(meant, function(*inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("extent", [257, 131])
def test_tail_of_an_uneven_loop_means_what_it_computes(extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [randn(extent, 40), randn(extent, 40)]

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) * 2

    automatic = {"ignore_span_overflow_hints": False, "max_span_bytes": 20000, "sencores": 1}
    with config.patch(automatic):
        found = compiled(function)(*(on_card(i) for i in inputs)).cpu()
        torch._dynamo.reset()
        monkeypatch.setattr(runtime, "prepare", Interpreted)
        meant = compiled(function)(*(on_card(i) for i in inputs)).cpu()
    assert torch.equal(found, function(*inputs))
    assert torch.equal(meant, found)
