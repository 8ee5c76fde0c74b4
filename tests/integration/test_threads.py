"""Many threads over one carrier: nothing is lost, nothing hangs, nothing stays behind."""

from __future__ import annotations

import random
import threading
import time

import pytest
import torch

from strideweave import CPU, BudgetExceeded, DType, Layout, Tensor, TiledEvictable, TileSelection, TileSet

TILES, ELEMS, SECONDS = 200, 64, 3.0


def test_four_threads_of_overlapping_requests_for_some_seconds(owned_cache: object) -> None:
    values = torch.arange(float(TILES * ELEMS)).reshape(TILES, ELEMS)
    layout = Layout.row_major(TILES, ELEMS)
    carrier = TiledEvictable(
        CPU(0),
        CPU.wrap(values.reshape(-1).clone()),
        (TILES, 1),
        (1, ELEMS),
        layout=layout,
        budget=24 * ELEMS * 4,
    )
    tensor = Tensor(carrier, 0, layout)
    end = time.monotonic() + SECONDS
    failures: list[BaseException] = []
    done = [0] * 4

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            while time.monotonic() < end:
                picked = draw.sample(range(TILES), draw.randint(1, 12))
                try:
                    one_request(draw, picked)
                except BudgetExceeded:
                    pass  # the others hold the slots
                except RuntimeError as conflict:
                    # Overlapping requests are refused by name, and only for the reasons that the seed gives.
                    if "pending" not in str(conflict) and "pinned" not in str(conflict):
                        raise
                done[seed] += 1
        except BaseException as e:
            failures.append(e)

    def one_request(draw: random.Random, picked: list[int]) -> None:
        tiles = TileSet([(k, 0) for k in picked])
        kind = draw.randrange(6)
        if kind == 0:
            assert torch.equal(carrier.project(tensor, TileSelection([picked, [0]])).wait(10).torch(), values[picked])
        elif kind == 1:
            with carrier.stream(tiles) as stream:
                seen = {c[0]: view.clone() for c, view in stream}
            assert all(torch.equal(seen[k][0], values[k]) for k in picked)
        elif kind == 2:
            with carrier.borrow(TileSet([(k, 0) for k in picked[:3]])) as views:
                assert all(torch.equal(view[0], values[c[0]]) for c, view in views.items())
        elif kind == 3:
            carrier.promote_async(tiles).wait(10)
        elif kind == 4:
            carrier.evict_async(tiles).wait(10)
        else:
            slot = picked[0] * ELEMS
            carrier[slot] = carrier[slot]  # dirty, with the value that it has

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 30)
    assert not any(thread.is_alive() for thread in threads), "a request never came back"
    assert not failures, failures
    assert min(done) > 20
    statistics = carrier.statistics()
    assert statistics.pinned_tiles == 0
    assert statistics.resident_tiles + statistics.in_flight_tiles <= 24
    assert torch.equal(tensor.materialize().torch(), values)
    carrier.release()


def test_released_carrier_lets_no_request_in(owned_cache: object) -> None:
    carrier = TiledEvictable(CPU.wrap(torch.zeros(8)), CPU(0, dtype=DType.Float32), (4,), (2,))
    carrier.release()
    for call in (carrier.promote_async, carrier.evict_async, carrier.stream):
        with pytest.raises(RuntimeError, match="released"):
            call(TileSet([(0,)]))
