"""PyTorch's own database of operations, compiled for the card: every entry equals the CPU, or is in the table."""

from __future__ import annotations

import random
import warnings
from itertools import islice
from typing import Any

import pytest
import torch

from strideweave.inductor.report import _told as told
from support.op_database import attempt, entries, is_plain, moved, name_of, tensors

pytest.importorskip("expecttest", reason="torch's database of operations needs it")

OTHERWISE = {
    "native_batch_norm": "on the CPU its saved statistics are empty, elsewhere not",
    "_native_batch_norm_legit": "on the CPU its saved statistics are empty, elsewhere not",
    "tensor_split": "torch wants its indices on the CPU, whatever the device",
}
"""Entries that differ, and why."""

OTHERWISE_NARROW = {
    "_batch_norm_with_update": "its saved statistics are Float32, as on other devices than the CPU",
    "native_layer_norm": "its saved statistics are Float32, as on other devices than the CPU",
}
"""Entries that differ in narrow floats, beside the others."""

NARROW = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Narrow floats are rounded at other places than on the CPU, where an operation is decomposed."""


def compiled_equals(entry: Any, samples: int, dtype: torch.dtype = torch.float32) -> str:
    """Nothing when the first samples of an entry equal the CPU, else what is wrong."""
    torch.manual_seed(0)
    for sample in islice(entry.sample_inputs("cpu", dtype, requires_grad=False), samples):
        torch._dynamo.reset()
        host = moved((sample.input, sample.args, sample.kwargs), "cpu")
        want, refused = attempt(lambda host=host: called(entry.op, host))
        card = moved((sample.input, sample.args, sample.kwargs), "spyre")
        step = torch.compile(lambda i, *a, **k: entry.op(i, *a, **k), dynamic=False)
        got, error = attempt(lambda card=card, step=step: called(step, card))
        if refused is not None:
            continue
        if error is not None:
            return f"{type(error).__name__}: {error}"
        wrong = difference(want, got, dtype)
        if wrong and not (dtype in NARROW and is_as_close(entry, sample, want, got)):
            return wrong
    return ""


def called(op: Any, sample: Any) -> Any:
    torch.manual_seed(1)
    return op(sample[0], *sample[1], **sample[2])


def difference(want: Any, got: Any, dtype: torch.dtype) -> str:
    allowed = {"rtol": NARROW[dtype], "atol": NARROW[dtype]} if dtype in NARROW else {}
    for a, b in zip(tensors(want), tensors(got), strict=True):
        if isinstance(a, torch.Tensor) and a.layout is torch.strided:
            _, wrong = attempt(lambda a=a, b=b: torch.testing.assert_close(b.cpu(), a, equal_nan=True, **allowed))
            if wrong is not None:
                return str(wrong)
    return ""


def is_as_close(entry: Any, sample: Any, want: Any, got: Any) -> bool:
    """Whether narrow floats are as close to what Float32 gives as the CPU's own, which rounds more often."""
    wide = widened((sample.input, sample.args, sample.kwargs))
    exact, refused = attempt(lambda: called(entry.op, wide))
    if refused is not None:
        return False
    return all(
        a.dtype == b.dtype and (b.cpu().float() - x).abs().max() <= (a.float() - x).abs().max() * 1.5
        for a, b, x in zip(tensors(want), tensors(got), tensors(exact), strict=True)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
    )


def widened(value: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda x: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, value
    )


def outcomes(chosen: list[Any], samples: int, dtype: torch.dtype = torch.float32) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name_of(entry): compiled_equals(entry, samples, dtype) for entry in chosen}


def test_a_sample_of_40_entries_equals_the_cpu() -> None:
    plain = [entry for entry in entries() if is_plain(entry) and name_of(entry) not in OTHERWISE]
    found = outcomes(random.Random(3).sample(plain, 40), samples=1)
    assert not {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_at_least_520_of_the_plain_entries_equal_the_cpu_and_at_most_60_fall_back() -> None:
    plain = [entry for entry in entries() if is_plain(entry)]
    found, elsewhere = {}, set()
    for entry in plain:
        told.clear()
        found.update(outcomes([entry], samples=4))
        if told:
            elsewhere.add(name_of(entry))
    wrong = {name for name, problem in found.items() if problem}
    assert wrong <= set(OTHERWISE), {name: found[name] for name in wrong - set(OTHERWISE)}
    assert len(found) - len(wrong) >= 520
    assert len(elsewhere) <= 60, sorted(elsewhere)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool], ids=str)
def test_other_dtypes_equal_the_cpu_too(dtype: torch.dtype) -> None:
    plain = [entry for entry in entries() if is_plain(entry) and dtype in entry.dtypes]
    found = outcomes(plain, samples=4, dtype=dtype)
    expected = {**OTHERWISE, **(OTHERWISE_NARROW if dtype in NARROW else {})}
    assert not {name: problem for name, problem in found.items() if problem and name not in expected}
