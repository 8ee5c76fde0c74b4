"""PyTorch's own database of operations, compiled for the card: every entry equals the CPU, or is in the table."""

from __future__ import annotations

import random
import warnings
from itertools import islice
from typing import Any

import pytest
import torch

from support.op_database import attempt, entries, is_plain, moved, name_of, tensors

pytest.importorskip("expecttest", reason="torch's database of operations needs it")

OTHERWISE = {
    "native_batch_norm": "on the CPU its saved statistics are empty, elsewhere not",
    "_native_batch_norm_legit": "on the CPU its saved statistics are empty, elsewhere not",
    "tensor_split": "torch wants its indices on the CPU, whatever the device",
}
"""Entries that differ, and why."""


NARROW = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Narrow floats are rounded at other places than on the CPU, where an operation is decomposed."""


def compiled_equals(entry: Any, samples: int, dtype: torch.dtype = torch.float32) -> str:
    """Nothing when the first samples of an entry equal the CPU, else what is wrong."""
    torch.manual_seed(0)
    drawn = list(islice(entry.sample_inputs("cpu", dtype, requires_grad=False), samples))
    allowed = {"rtol": NARROW[dtype], "atol": NARROW[dtype]} if dtype in NARROW else {}
    for sample in drawn:
        torch._dynamo.reset()
        host = moved((sample.input, sample.args, sample.kwargs), "cpu")
        torch.manual_seed(1)
        want, refused = attempt(lambda host=host: entry.op(host[0], *host[1], **host[2]))
        card = moved((sample.input, sample.args, sample.kwargs), "spyre")
        torch.manual_seed(1)
        step = torch.compile(lambda i, *a, **k: entry.op(i, *a, **k), dynamic=False)
        got, error = attempt(lambda card=card, step=step: step(card[0], *card[1], **card[2]))
        if refused is not None:
            continue
        if error is not None:
            return f"{type(error).__name__}: {error}"
        for a, b in zip(tensors(want), tensors(got), strict=True):
            if isinstance(a, torch.Tensor) and a.layout is torch.strided:
                _, wrong = attempt(lambda a=a, b=b: torch.testing.assert_close(b.cpu(), a, equal_nan=True, **allowed))
                if wrong is not None:
                    return str(wrong)
    return ""


def outcomes(chosen: list[Any], samples: int, dtype: torch.dtype = torch.float32) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name_of(entry): compiled_equals(entry, samples, dtype) for entry in chosen}


def test_a_sample_of_40_entries_equals_the_cpu() -> None:
    plain = [entry for entry in entries() if is_plain(entry) and name_of(entry) not in OTHERWISE]
    found = outcomes(random.Random(3).sample(plain, 40), samples=1)
    assert not {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.slow
def test_at_least_520_of_the_plain_entries_equal_the_cpu() -> None:
    plain = [entry for entry in entries() if is_plain(entry)]
    found = outcomes(plain, samples=4)
    wrong = {name for name, problem in found.items() if problem}
    assert wrong <= set(OTHERWISE), {name: found[name] for name in wrong - set(OTHERWISE)}
    assert len(found) - len(wrong) >= 520
