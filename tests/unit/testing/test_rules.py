"""How broken rules are told, and what the contract tells apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from strideweave import DType
from strideweave.dtype import StorageDType
from strideweave.testing.rules import pattern, refused, same_values, special_values, works


def test_refused_with_the_wrong_class_names_both() -> None:
    with (
        pytest.raises(AssertionError, match=r"carriers end\. Found: KeyError where IndexError was due") as info,
        refused(IndexError, "", "carriers end"),
    ):
        raise KeyError("7")
    assert isinstance(info.value.__cause__, KeyError)


def test_refused_without_the_words_shows_what_was_said() -> None:
    with (
        pytest.raises(AssertionError, match="without the words 'owned' or 'mutable': no"),
        refused(RuntimeError, "owned|mutable", "it is ours"),
    ):
        raise RuntimeError("no")


def test_refused_takes_any_of_the_words_and_classes() -> None:
    with refused((TypeError, RuntimeError), "owned|mutable", "it is ours"):
        raise RuntimeError("Carrier is NOT MUTABLE")


def test_refused_is_not_satisfied_by_an_assertion() -> None:
    with (
        pytest.raises(AssertionError, match="an AssertionError where RuntimeError was due"),
        refused(RuntimeError, "", "a rule"),
    ):
        raise AssertionError("only an empty carrier is allocated")


def test_works_keeps_the_error_as_the_cause() -> None:
    with pytest.raises(AssertionError, match=r"it works\. Found: OSError: gone") as info, works("it works"):
        raise OSError("gone")
    assert isinstance(info.value.__cause__, OSError)


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_same_values_finds_a_change_of_any_one_slot(dtype: StorageDType) -> None:
    values = torch.cat([special_values(dtype), pattern(20, dtype)])
    assert same_values(values, values.clone())
    for k in range(values.numel()):
        changed = values.clone()
        changed[k] = changed[(k + 1) % values.numel()]
        assert same_values(changed, values) is (repr(changed[k].item()) == repr(values[k].item()))


def test_same_values_tells_zeros_apart_and_nans_not() -> None:
    nans = torch.from_numpy(np.array([0x7FC00000, 0xFFC00001], dtype=np.uint32).view(np.float32))
    assert same_values(nans[:1], nans[1:])
    assert not same_values(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_values(torch.tensor([0.0]), torch.tensor([0]))
    assert not same_values(torch.zeros(2), torch.zeros(3))


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
@pytest.mark.parametrize("salt", range(4))
def test_pattern_differs_from_its_neighbours_and_from_zero(dtype: StorageDType, salt: int) -> None:
    values = pattern(50, dtype, salt=salt).to(torch.float64)
    if dtype is DType.Bool:
        assert 10 < values.sum() < 40
        return
    assert (values != 0).all()
    assert (values.diff() != 0).all()
    assert not torch.equal(values, pattern(50, dtype, salt=salt + 1).to(torch.float64))


def test_special_values_have_the_limits_of_numpy() -> None:
    assert special_values(DType.Int64).tolist()[:2] == [np.iinfo(np.int64).min, np.iinfo(np.int64).max]
    facts = np.finfo(np.float32)
    found = special_values(DType.Float32).tolist()
    assert found[5:9] == [facts.max, facts.min, facts.smallest_subnormal, 1 + facts.eps]
