"""Seed 000, requirement: Tiled release ends all owned residency."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import strideweave as sw
from strideweave import FileBacked, Tensor, TiledEvictable, TileSelection, TileSet
from support.tiled import every_tile, experts, matrix, situation, slots_of, tiles

ONE = TileSelection([[0], [0], [0]])


class TestTiledReleaseEndsAllOwnedResidency:
    def test_release_after_completed_tiled_work(self) -> None:
        secondary = FileBacked()
        carrier, tensor, _ = matrix(secondary=secondary)
        carrier.evict(TileSet([(0, 0), (1, 1)]))
        path = Path(secondary.path)
        assert path.exists()
        assert carrier.release() is None
        assert carrier.is_released()
        assert carrier.primary.is_released()
        assert secondary.is_released()
        assert not path.exists()
        selection = TileSelection([[0], [0]])
        for request in (
            lambda: carrier.project(tensor, selection),
            lambda: carrier.promote(selection),
            lambda: carrier.promote_async(selection),
            lambda: carrier.evict(selection),
            lambda: carrier.evict_async(selection),
            lambda: carrier.stream(selection),
            lambda: carrier.borrow(selection).__enter__(),
            lambda: carrier[0],
            lambda: carrier.__setitem__(0, 1.0),
            lambda: tensor[0, 0],
            lambda: tensor.materialize(),
            lambda: sw.relu(tensor),
            lambda: sw.mul(tensor, 2.0),
            lambda: sw.reduce_sum(tensor),
            lambda: sw.matmul(tensor, tensor),
            lambda: carrier.dispatch_op("add"),
        ):
            with pytest.raises(RuntimeError, match="released"):
                request()

    def test_release_is_idempotent(self) -> None:
        carrier, _, _ = matrix()
        carrier.release()
        assert carrier.release() is None
        assert carrier.size() == 0
        assert "released" in repr(carrier)
        assert carrier.dtype().name == "Float32"
        assert carrier.supports_storage_dtype(carrier.dtype())

    @pytest.mark.parametrize("pending", ["project", "promote", "evict"])
    def test_release_during_work_is_refused_and_cancels_nothing(self, pending: str) -> None:
        carrier, weight, dense, secondary = experts()
        expected = dense.clone()
        if pending == "evict":
            weight[0, 0, 0] = 100.0
            expected[0, 0, 0] = 100.0
            hold = secondary.hold_write()
        else:
            hold = secondary.hold_read()
        handle = {
            "project": lambda: carrier.project(weight, ONE),
            "promote": lambda: carrier.promote_async(ONE),
            "evict": lambda: carrier.evict_async(ONE),
        }[pending]()
        with hold:
            hold.wait_until_reached()
            before = situation(carrier)
            with pytest.raises(RuntimeError, match=r"wait\(\)"):
                carrier.release()
            assert situation(carrier) == before
            assert not carrier.is_released()
            assert not handle.done
        outcome = handle.wait(5)
        if pending == "project":
            assert torch.equal(outcome.torch(), dense[[0]])
        assert torch.equal(slots_of(carrier), expected.reshape(-1))
        carrier.release()

    def test_release_is_possible_as_soon_as_a_handle_is_done(self) -> None:
        for _ in range(20):
            carrier, weight, _, _ = experts(2)
            carrier.project(weight, TileSelection([[1, 0], [0], [0]])).wait(5)
            carrier.release()

    def test_release_inside_a_borrow_or_a_stream_is_refused(self) -> None:
        carrier, *_ = experts()
        with carrier.borrow(tiles(0)) as views:
            with pytest.raises(RuntimeError, match="borrow"):
                carrier.release()
            assert views[(0, 0, 0)].flatten().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        carrier.promote(every_tile(carrier))
        stream = carrier.stream(every_tile(carrier))
        next(stream)
        with pytest.raises(RuntimeError, match="stream"):
            carrier.release()
        stream.close()
        carrier.release()

    def test_release_after_a_stream_that_was_left_early(self) -> None:
        """What a closed stream had on its way belongs to no handle, so nobody can be told to wait for it."""
        carrier, _, _, secondary = experts()
        with secondary.hold_read(2) as hold:
            with carrier.stream(every_tile(carrier)) as stream:
                next(stream)
            hold.wait_until_reached()
            threading.Timer(0.05, hold.let_go).start()
            carrier.release()

    def test_named_file_outlives_the_carrier(self, tmp_path: Path) -> None:
        path = tmp_path / "weights.bin"
        carrier, _, dense = matrix(secondary=FileBacked(path))
        carrier.evict(every_tile(carrier))
        carrier.release()
        again = TiledEvictable.open(path)
        assert torch.equal(Tensor(again, 0, again.layout).materialize().torch(), dense)
        again.release()

    def test_result_outlives_the_carrier(self) -> None:
        carrier, weight, dense, _ = experts()
        result = carrier.project(weight, ONE).wait(5)
        carrier.release()
        assert torch.equal(result.torch(), dense[[0]])
