"""PyTorch's own database of operations, run on the card and on the CPU."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

SAMPLES = 4
RANDOM = re.compile(
    r"^(bernoulli|cauchy|exponential|geometric|log_normal|normal|uniform|multinomial|rand|randn|randint|randn_like|"
    r"rand_like|randint_like|empty.*|new_empty.*|jiterator.*|nn\.functional\.(rrelu|.*dropout.*)|native_dropout.*|"
    r".*lowrank)$"
)
"""Entries whose results are drawn, or not written at all, or made for another device."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an entry in one dtype: `kind` is "equal", "refused", "different" or "unsampled"."""

    name: str
    kind: str
    detail: str = ""


def name_of(entry: Any) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def entries() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted(op_db, key=name_of)


def is_plain(entry: Any) -> bool:
    """Whether an entry is outside linalg, fft, sparse, special and random names, and takes float32."""
    is_other = any(word in entry.name for word in ("linalg", "fft", "sparse", "special"))
    return not is_other and not RANDOM.match(entry.name) and torch.float32 in entry.dtypes


def moved(value: Any, device: str) -> Any:
    """The same sample on another device: tensors as copies of the same strides, everything else as it is."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value.to(device)
        copy = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
        return copy.copy_(value.detach()).requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(device)
    if type(value) in (list, tuple):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple):  # a named one
        return type(value)(*(moved(part, device) for part in value))
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    return value


def tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Size):
        return
    if isinstance(value, torch.Tensor | int | float | bool | complex | str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def attempt(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def run(entry: Any, dtype: torch.dtype, *, samples: int = SAMPLES) -> Outcome:
    """The first samples of an entry, out of place and in place, on both devices."""
    name = name_of(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        drawn, error = attempt(lambda: list(islice(entry.sample_inputs("cpu", dtype, requires_grad=False), samples)))
        if error is not None or not drawn:
            return Outcome(name, "unsampled", str(error)[:200])
        refusals = []
        in_place = entry.get_inplace()
        for k, sample in enumerate(drawn):
            for function in (entry.op, in_place) if in_place is not None else (entry.op,):
                found = _compare(function, sample)
                if found is not None:
                    kind, detail = found
                    if kind == "different":
                        return Outcome(name, kind, f"sample {k}{'' if function is entry.op else ' in place'}: {detail}")
                    refusals.append(detail)
        return Outcome(name, "refused", refusals[0]) if refusals else Outcome(name, "equal")


def _compare(function: Callable[..., Any], sample: Any) -> tuple[str, str] | None:
    torch.manual_seed(1)
    on_cpu = moved((sample.input, sample.args, sample.kwargs), "cpu")
    want, cpu_error = attempt(lambda: function(on_cpu[0], *on_cpu[1], **on_cpu[2]))
    torch.manual_seed(1)
    on_card, error = attempt(lambda: moved((sample.input, sample.args, sample.kwargs), "spyre"))
    if error is None:
        got, error = attempt(lambda: function(on_card[0], *on_card[1], **on_card[2]))
    if cpu_error is not None:
        return None if error is not None else ("different", f"the CPU refuses, the card does not: {cpu_error}")
    if error is not None:
        return "refused", f"{type(error).__name__}: {str(error)[:300]}"
    a, b = list(tensors(want)), list(tensors(got))
    if len(a) != len(b):
        return "different", f"{len(b)} results instead of {len(a)}"
    results = b.copy()
    a += tensors(on_cpu)  # what an operation writes, it writes on the card too
    b += tensors(on_card)
    if len(a) != len(b):
        return "different", "the sample has other parts"
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        if not isinstance(x, torch.Tensor):
            if x != y and not (x != x and y != y):
                return "different", f"{y!r} instead of {x!r}"
            continue
        if x.layout is not torch.strided:
            continue
        if not isinstance(y, torch.Tensor) or y.device.type != "spyre":
            return "different", f"a result is on {getattr(y, 'device', None)}"
        _, error = attempt(lambda x=x, y=y: torch.testing.assert_close(y.cpu(), x, equal_nan=True))
        if error is not None and (k >= len(results) or not _is_nearer(function, sample, results)):
            return "different", str(error)[:300]
    return None


def run_backward(entry: Any, *, samples: int = 3) -> Outcome:
    """Gradients of the first float32 samples of an entry, on both devices."""
    name = name_of(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        drawn, error = attempt(
            lambda: list(islice(entry.sample_inputs("cpu", torch.float32, requires_grad=True), samples))
        )
        for sample in drawn or ():
            want, error = attempt(lambda sample=sample: _gradients(entry.op, sample, "cpu"))
            if error is not None:
                continue
            got, error = attempt(lambda sample=sample: _gradients(entry.op, sample, "spyre"))
            if error is not None:
                return Outcome(name, "refused", str(error)[:300])
            _, error = attempt(
                lambda got=got, want=want: torch.testing.assert_close(
                    [None if g is None else g.cpu() for g in got], want, equal_nan=True, rtol=1e-4, atol=1e-4
                )
            )
            if error is not None:
                return Outcome(name, "different", str(error)[:300])
        return Outcome(name, "equal")


def _gradients(function: Callable[..., Any], sample: Any, device: str) -> list[torch.Tensor | None]:
    given = moved((sample.input, sample.args, sample.kwargs), device)
    torch.manual_seed(1)
    leaves = [t for t in tensors(given) if isinstance(t, torch.Tensor) and t.requires_grad]
    results = [
        t for t in tensors(function(given[0], *given[1], **given[2])) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    total = sum((t.abs() if t.is_complex() else t).sum() for t in results)
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def _is_nearer(function: Callable[..., Any], sample: Any, got: list[Any]) -> bool:
    """Whether 16-bit results are a rounding away from what float32 gives: the CPU's own 16-bit sums are not always."""
    if not any(isinstance(y, torch.Tensor) and y.dtype in (torch.float16, torch.bfloat16) for y in got):
        return False
    wide, error = attempt(
        lambda: list(
            tensors(
                function(
                    *_widened((sample.input,)),
                    *_widened(sample.args),
                    **{key: _widened((value,))[0] for key, value in sample.kwargs.items()},
                )
            )
        )
    )
    if error is not None or len(wide) != len(got):
        return False
    _, error = attempt(
        lambda: [
            torch.testing.assert_close(y.cpu().float(), x, equal_nan=True, rtol=2 * torch.finfo(y.dtype).eps, atol=1e-3)
            for x, y in zip(wide, got, strict=True)
            if isinstance(y, torch.Tensor)
        ]
    )
    return error is None


def _widened(values: Any) -> list[Any]:
    return [
        value.detach().float()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else type(value)(_widened(value))
        if type(value) in (list, tuple)
        else value
        for value in values
    ]
