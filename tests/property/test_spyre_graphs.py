"""Random graphs of operations: compiled on the card, tiled or not, they give what eager torch gives on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import strideweave.inductor
from strideweave.inductor import Unsupported
from strideweave.inductor.report import reporting
from strideweave.spyre import config

Step = tuple[str, int, int]
POINTWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "maximum": torch.maximum,
    "less": lambda a, b: (a < b).to(a.dtype),
}
SHAPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "neg": torch.neg,
    "scale": lambda a: a * 2 + 1,
    "sum rows": lambda a: a.sum(0, keepdim=True).expand_as(a).clone(),
    "amax columns": lambda a: a - a.amax(1, keepdim=True),
    "flip": lambda a: a.flip(0),
    "shift": lambda a: torch.cat([a[1:], a[:1]], 0),
    "pad and cut": lambda a: torch.nn.functional.pad(a, (1, 0))[:, :-1],
    "twice transposed": lambda a: (a.t() + 1).t().contiguous(),
    "cumulative": lambda a: a.tril() if a.dtype != torch.bool else a,
    "matmul": lambda a: (a @ a.t()).clamp(-9, 9) @ a if a.is_floating_point() else a,
    "gathered": lambda a: a[torch.arange(a.shape[0] - 1, -1, -1, device=a.device)],
}


def build(steps: list[Step]) -> Callable[..., torch.Tensor]:
    """A function of two matrices of one size that does these steps, each on earlier values."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        values = [x, y]
        for name, first, second in steps:
            a, b = values[first % len(values)], values[second % len(values)]
            made = POINTWISE[name](a, b) if name in POINTWISE else SHAPED[name](a)
            values.append(made.clamp(-50, 50))
        return values[-1] + values[len(values) // 2]

    return run


steps = st.lists(
    st.tuples(st.sampled_from([*POINTWISE, *SHAPED]), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6
)
sizes = st.tuples(st.integers(1, 12), st.integers(1, 140))
dtypes = st.sampled_from([torch.float32, torch.float16, torch.int64])


def compiled(function: Callable[..., Any], *inputs: torch.Tensor, **patched: Any) -> torch.Tensor:
    assert strideweave.inductor.register is not None
    torch._dynamo.reset()
    with warnings.catch_warnings(), inductor_config.patch(force_disable_caches=True), config.patch(patched):
        warnings.simplefilter("ignore")
        found: torch.Tensor = torch.compile(function, dynamic=False)(*(i.to("spyre") for i in inputs)).cpu()
    return found


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = {torch.float16: 5e-2, torch.float32: 1e-4}.get(wanted.dtype, 0)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def inputs_of(size: tuple[int, int], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-3, 4, size, generator=generator).to(dtype) for _ in range(2)]


def equals_the_cpu(graph: list[Step], size: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    function, inputs = build(graph), inputs_of(size, dtype, seed)
    same(compiled(function, *inputs), function(*inputs))


def tiles_equal_the_cpu(graph: list[Step], size: tuple[int, int], dtype: torch.dtype, seed: int, limit: int) -> None:
    function, inputs = build(graph), inputs_of(size, dtype, seed)
    try:
        with reporting() as report:
            found = compiled(function, *inputs, ignore_span_overflow_hints=False, max_span_bytes=limit, sencores=1)
    except Exception as error:
        if not isinstance(getattr(error, "inner_exception", error), Unsupported):
            raise
        event("refused")
        return
    event("tiled" if "LoopSpec" in "".join(report.programs) else "fits")
    same(found, function(*inputs))


QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(steps, sizes, dtypes, st.integers(0, 99))
@QUICK
def test_graph_equals_the_cpu(graph: list[Step], size: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    equals_the_cpu(graph, size, dtype, seed)


@given(steps, sizes, dtypes, st.integers(0, 99), st.sampled_from([512, 1024, 2048, 4096, 8192]))
@QUICK
def test_automatic_tiles_equal_the_cpu(
    graph: list[Step], size: tuple[int, int], dtype: torch.dtype, seed: int, limit: int
) -> None:
    tiles_equal_the_cpu(graph, size, dtype, seed, limit)


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(steps, sizes, dtypes, st.integers(0, 99))
@LONG
def test_many_graphs_equal_the_cpu(graph: list[Step], size: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    equals_the_cpu(graph, size, dtype, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(steps, sizes, dtypes, st.integers(0, 99), st.sampled_from([512, 1024, 2048, 4096, 8192]))
@LONG
def test_many_automatic_tiles_equal_the_cpu(
    graph: list[Step], size: tuple[int, int], dtype: torch.dtype, seed: int, limit: int
) -> None:
    tiles_equal_the_cpu(graph, size, dtype, seed, limit)
