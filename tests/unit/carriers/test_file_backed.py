"""FileBacked: slots in a file, anonymous or named."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strideweave import DType, FileBacked
from strideweave.carriers.file_backed import read_all
from strideweave.io import StorageError


def test_file_backed_anonymous_file_goes_with_the_carrier() -> None:
    carrier = FileBacked(size=4)
    path = Path(carrier.path)
    assert path.stat().st_size == 16
    carrier.release()
    assert not path.exists()


def test_file_backed_anonymous_file_goes_with_the_last_reference() -> None:
    carrier = FileBacked(size=4)
    path = Path(carrier.path)
    del carrier
    gc.collect()
    assert not path.exists()


def test_file_backed_named_file_outlives_the_carrier_and_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    carrier = FileBacked(path, size=3, dtype=DType.Int16)
    carrier[1] = -7
    carrier.release()
    assert np.fromfile(path, dtype="<i2").tolist() == [0, -7, 0]
    again = FileBacked.open(path, dtype=DType.Int16)
    assert [again[k] for k in range(again.size())] == [0, -7, 0]
    again[2] = 5
    again.release()
    assert np.fromfile(path, dtype="<i2").tolist() == [0, -7, 5]


def test_file_backed_never_overwrites_a_file(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"FileBacked\.open"):
        FileBacked(path, size=1)
    link = tmp_path / "dangling"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        FileBacked(link, size=1)
    assert path.read_bytes() == b"precious"


def test_file_backed_missing_file_is_not_made_by_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileBacked.open(tmp_path / "none", dtype=DType.Int8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "offset_nbytes"), [(None, 1), (3, 0), (2, 3), (None, 11), (1, 100)], ids=str)
def test_file_backed_open_of_slots_outside_the_file_is_refused(
    tmp_path: Path, size: int | None, offset_nbytes: int
) -> None:
    path = tmp_path / "ten"
    path.write_bytes(bytes(10))
    with pytest.raises(ValueError, match="10 bytes"):
        FileBacked.open(path, dtype=DType.Float32, size=size, offset_nbytes=offset_nbytes)


@pytest.mark.parametrize(("size", "error"), [(-1, ValueError), (True, TypeError), (2.0, TypeError)])
def test_file_backed_bad_sizes_are_refused_before_a_file_is_made(
    tmp_path: Path, size: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        FileBacked(tmp_path / "x", size=size)  # type: ignore[arg-type]
    with pytest.raises(error):
        FileBacked(tmp_path / "x", size=1, offset_nbytes=size)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=6),
    st.integers(0, 17),
)
def test_file_backed_runs_equal_a_numpy_array(runs: list[tuple[int, int]], offset_nbytes: int) -> None:
    carrier = FileBacked(size=48, dtype=DType.Int32, offset_nbytes=offset_nbytes)
    model = np.zeros(48, dtype=np.int32)
    for k, (start, length) in enumerate(runs):
        values = torch.arange(length, dtype=torch.int32) + 100 * (k + 1)
        assert carrier._write_runs([(start, values)]) == 4 * length
        model[start : start + length] = values.numpy()
    if runs:
        out = [torch.empty(length, dtype=torch.int32) for _, length in runs]
        carrier._read_runs([(start, o) for (start, _), o in zip(runs, out, strict=True)])
        for (start, length), o in zip(runs, out, strict=True):
            assert o.tolist() == model[start : start + length].tolist()
    assert read_all(carrier).tolist() == model.tolist()
    raw = Path(carrier.path).read_bytes()[offset_nbytes:]
    assert np.frombuffer(raw, dtype=np.int32).tolist() == model.tolist()
    carrier.release()


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_file_backed_keeps_every_bit_of_every_dtype(dtype) -> None:  # type: ignore[no-untyped-def]
    raw = torch.arange(16, dtype=torch.uint8) if dtype is not DType.Bool else torch.arange(16, dtype=torch.uint8) % 2
    values = raw.view(dtype.torch_dtype)
    carrier = FileBacked(size=values.numel(), dtype=dtype)
    carrier._write_runs([(0, values)])
    assert torch.equal(read_all(carrier).view(torch.uint8), raw)
    carrier.release()


def test_file_backed_file_cut_behind_our_back_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    carrier = FileBacked(path, size=8)
    with path.open("r+b") as file:
        file.truncate(16)
    with pytest.raises(StorageError, match="cut"):
        read_all(carrier)
    assert carrier[0] == 0.0
    carrier.release()


def test_file_backed_empty_carrier_has_no_slots_until_allocated() -> None:
    carrier = FileBacked()
    assert carrier.size() == 0
    with pytest.raises(IndexError):
        carrier[0]
    carrier._allocate(2)
    carrier[1] = 3.0
    assert read_all(carrier).tolist() == [0.0, 3.0]
    carrier.release()


def test_file_backed_repr_names_the_file() -> None:
    carrier = FileBacked(size=2)
    assert carrier.path in repr(carrier)
    assert "2 x Float32" in repr(carrier)
    carrier.release()
