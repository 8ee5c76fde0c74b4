"""CheckpointFile: tensors read where they lie in files, one piece after the other, and never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strideweave import (
    CPU,
    CheckpointFile,
    DType,
    FileBacked,
    Layout,
    Piece,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.carriers.file_backed import read_all
from strideweave.io import ChangedFileError, SourceFile


def file_of(folder: Path, name: str, values: np.ndarray, before: int = 0) -> Path:
    path = folder / name
    path.write_bytes(bytes(before) + values.tobytes() + b"tail")
    return path


@pytest.fixture
def pieces(tmp_path: Path) -> list[Piece]:
    """Slots 0 .. 11 in three stretches of two files, the last one before the first on disk."""
    values = np.arange(12, dtype=np.float32)
    one = SourceFile(file_of(tmp_path, "one", np.concatenate((values[8:], values[:3])), before=5))
    two = SourceFile(file_of(tmp_path, "two", values[3:8], before=64))
    return [Piece(one, 5 + 16, 12), Piece(two, 64, 20), Piece(one, 5, 16)]


def test_checkpoint_file_reads_pieces_end_to_end(pieces: list[Piece]) -> None:
    carrier = CheckpointFile(pieces, dtype=DType.Float32)
    assert carrier.size() == 12
    assert carrier.pieces == tuple(pieces)
    assert read_all(carrier).tolist() == list(range(12))
    assert [carrier[k] for k in (0, 2, 3, 7, 8, 11)] == [0, 2, 3, 7, 8, 11]
    assert "3 pieces of 2 files" in repr(carrier)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12)), min_size=1, max_size=4))
def test_checkpoint_file_runs_cross_pieces(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]]
) -> None:
    values = np.arange(12, dtype=np.int16)
    path = tmp_path_factory.mktemp("runs") / "all"
    path.write_bytes(b"x" + values.tobytes())
    source = SourceFile(path)
    carrier = CheckpointFile(
        [Piece(source, 1, 2), Piece(source, 3, 0), Piece(source, 3, 12), Piece(source, 15, 10)], dtype=DType.Int16
    )
    out = [torch.empty(min(length, 12 - start), dtype=torch.int16) for start, length in runs]
    moved = carrier._read_runs([(start, o) for (start, _), o in zip(runs, out, strict=True)])
    assert moved == sum(o.nbytes for o in out)
    for (start, _), o in zip(runs, out, strict=True):
        assert o.tolist() == values[start : start + o.numel()].tolist()


def test_checkpoint_file_touches_no_file_until_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, "gone", np.zeros(2, dtype=np.float32))
    source = SourceFile(path)
    path.unlink()
    carrier = CheckpointFile([Piece(source, 0, 8)], dtype=DType.Float32)
    assert carrier.size() == 2
    with pytest.raises(OSError, match="gone"):
        carrier[0]


def test_checkpoint_file_piece_of_half_a_slot_is_refused(pieces: list[Piece]) -> None:
    with pytest.raises(ValueError, match="8-byte slots"):
        CheckpointFile(pieces, dtype=DType.Float64)


def test_checkpoint_file_is_never_written(pieces: list[Piece]) -> None:
    carrier = CheckpointFile(pieces, dtype=DType.Float32)
    assert not carrier.is_mutable()
    with pytest.raises(RuntimeError, match="not mutable"):
        carrier[0] = 1.0
    with pytest.raises(RuntimeError, match="never changed"):
        carrier._write_runs([(0, torch.ones(1))])
    with pytest.raises(RuntimeError, match="never changed"):
        carrier._allocate(1)
    assert carrier.version == 0


def test_checkpoint_file_makes_others_of_its_kind_in_a_fresh_file(pieces: list[Piece]) -> None:
    fresh = CheckpointFile(pieces, dtype=DType.Float32).allocate_like(3)
    assert type(fresh) is FileBacked
    assert read_all(fresh).tolist() == [0.0, 0.0, 0.0]
    fresh.release()


def test_checkpoint_file_without_pieces_is_empty() -> None:
    assert CheckpointFile([], dtype=DType.Int8).size() == 0


def test_checkpoint_file_changed_file_is_refused_at_reading(pieces: list[Piece]) -> None:
    carrier = CheckpointFile(pieces, dtype=DType.Float32)
    assert carrier[3] == 3.0
    path = Path(pieces[1].file.path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ChangedFileError, match="two"):
        carrier[3]
    assert carrier[0] == 0.0


def test_checkpoint_file_released_holds_nothing(pieces: list[Piece]) -> None:
    carrier = CheckpointFile(pieces, dtype=DType.Float32)
    carrier.release()
    assert carrier.size() == 0
    with pytest.raises(RuntimeError, match="released"):
        carrier[0]
    assert Path(pieces[0].file.path).exists()


@pytest.mark.parametrize("budget", [None, 16])
def test_checkpoint_file_as_secondary_tier_sends_changes_to_an_overlay(pieces: list[Piece], budget: int | None) -> None:
    files = {piece.file.path: Path(piece.file.path).read_bytes() for piece in pieces}
    layout = Layout.row_major(3, 2, 2)
    carrier = TiledEvictable(
        CPU(0), CheckpointFile(pieces, dtype=DType.Float32), (3, 1, 1), (1, 2, 2), layout=layout, budget=budget
    )
    weight = Tensor(carrier, 0, layout)
    expected = torch.arange(12.0).reshape(3, 2, 2)
    assert torch.equal(carrier.project(weight, TileSelection([[2, 0], [0], [0]])).wait(5).torch(), expected[[2, 0]])
    weight[1, 1, 0] = expected[1, 1, 0] = -1.0
    carrier.evict(TileSet([(1, 0, 0)]))
    assert carrier.tile_state((1, 0, 0)).location == "secondary"
    assert torch.equal(weight.materialize().torch(), expected)
    assert {path: Path(path).read_bytes() for path in files} == files
    carrier.release()
