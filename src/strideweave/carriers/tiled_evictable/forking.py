"""What a forked child may do with the tiled carriers of its parent: read what is clean, and nothing else.

The child has a copy of the parent's memory and none of its other threads. What those had in hand never arrives, and
the storage is still the parent's. So in the child requests of other threads are over, tiles that were dirty are gone,
and nothing is written.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strideweave.carriers.handle import AwaitResult
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable
    from strideweave.carriers.tiled_evictable.engine import Engine

_PATIENCE_S = 1.0

_living: weakref.WeakSet[TiledEvictable] = weakref.WeakSet()
_held: list[Engine] = []


def watch(carrier: TiledEvictable) -> None:
    """A forked child will find the carrier as this module says."""
    _living.add(carrier)


def _alive() -> list[TiledEvictable]:
    while True:
        try:
            return list(_living)
        except RuntimeError:  # another thread made one meanwhile
            continue


def _before() -> None:
    """No tile changes its state while the process is copied. A thread that forks inside the lock goes on without."""
    engines = [carrier._engine for carrier in _alive()]
    _held.extend(engine for engine in engines if engine.guard.acquire(timeout=_PATIENCE_S))


def _after_in_parent() -> None:
    while _held:
        _held.pop().guard.release()


def _after_in_child() -> None:
    _held.clear()
    for carrier in _alive():
        for tier in (carrier, carrier._primary, carrier._secondary):
            tier._owner_lock = threading.Lock()
        _enter_child(carrier._engine)


def _enter_child(engine: Engine) -> None:
    engine.guard = threading.Condition(threading.Lock())
    engine._scratch = threading.Lock()
    engine.secondary.enter_child()
    engine.abandoned.clear()
    engine.written_back.clear()
    _end_requests(engine)
    for tile in engine.tiles:
        if tile.dirty and tile.slot is not None:
            engine.left_in_parent.add(tile.ordinal)
            engine.order.forget(tile.ordinal)
            if not tile.pins:
                engine.primary.give(tile.slot)
            tile.slot, tile.dirty, tile.stored, tile.implicit = None, False, False, False
    if engine.primary.enter_child():
        for tile in engine.tiles:
            if tile.slot is not None:
                engine.order.forget(tile.ordinal)
                engine.primary.give(tile.slot)
                tile.slot = None


def _end_requests(engine: Engine) -> None:
    here = threading.get_ident()
    for pin in list(engine.pins):
        if pin.thread != here:  # a block around the fork goes on in the child
            engine.pins.discard(pin)
            for tile in pin.tiles.values():
                tile.pins -= 1
            pin.tiles.clear()
    for tile in engine.tiles:
        if tile.load is not None:
            if tile.load.slot is not None:
                engine.primary.give(tile.load.slot)
            tile.load.error = RuntimeError(_over(f"the load of a tile of {engine.name}"))
            tile.load = None
        if tile.claim is not None:
            _end_handle(tile.claim)
            tile.claim = None
    engine.guesses.clear()
    engine.passing.clear()
    engine.work = engine.loads = engine.unslotted = 0


def _end_handle(handle: AwaitResult[None]) -> None:
    if not handle.done:
        handle._finished = threading.Event()  # its lock may belong to a thread that is not here
        handle._fail(RuntimeError(_over(repr(handle))))


def _over(what: str) -> str:
    return (
        f"cannot wait for {what} in a child after fork: the threads that worked on it are the parent's. A forked child "
        "has no request in flight. Ask again in the child, or wait before the fork."
    )


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
