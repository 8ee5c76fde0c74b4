"""What holds when values move into a carrier and out of it."""

from __future__ import annotations

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.cpu import CPU
from strideweave.carriers.move import move
from strideweave.layout import Layout, Shape, Stride
from strideweave.tensor import Tensor
from strideweave.testing.ending import EndingContract
from strideweave.testing.reading import SIZE
from strideweave.testing.rules import pattern, read_everything, refused, require, works

LAYOUTS = {
    "one slot": Layout(Shape(1), Stride(1)),
    "first mode fastest": Layout.column_major(4, 6),
    "row-major": Layout.row_major(2, 3, 4),
    "nested modes": Layout(Shape((2, 3), (2, 2)), Stride((1, 8), (2, 4))),
    "gaps between slots": Layout(Shape(3, 2), Stride(2, 9)),
    "broadcast": Layout(Shape(4, 5), Stride(1, 0)),
}
"""Layouts whose slots fit into `SIZE`."""


class OutwardContract(EndingContract):
    """The rules of moving values out of a carrier, into memory.

    >>> from strideweave.testing import CarrierContract
    >>> from strideweave.testing.moving import OutwardContract
    >>> issubclass(CarrierContract, OutwardContract)
    True
    """

    def test_move_out_carries_every_value_of_the_layout(self) -> None:
        """From any offset; the carrier ends with it."""
        for name, layout in LAYOUTS.items():
            for offset in (0, SIZE - layout.cosize):
                values = self.sample()
                carrier = self.filled(values)
                destination = CPU(0, dtype=self.dtype())
                if not self.accepts_moves:
                    self._refuses_route(carrier, destination, Tensor(carrier, offset, layout))
                    return
                with works(f"a Tensor at offset {offset} moves into memory ({name})"):
                    moved = move(Tensor(carrier, offset, layout), destination)
                _require_moved(moved, destination, layout, values[offset:], name)
                require(carrier.is_released(), "the carrier that values were moved out of is released")
                require(not carrier.is_owned(), "a finished move owns nothing")

    def test_move_out_of_a_carrier_that_is_not_free_is_refused(self) -> None:
        """Released, owned, to itself, of another dtype: before anything changes."""
        if not self.accepts_moves:
            return
        values = self.sample()
        carrier = self.filled(values)
        tensor = Tensor(carrier, 0, Layout.column_major(SIZE))
        with refused(ValueError, "own carrier", "a Tensor does not move into its own carrier"):
            move(tensor, carrier)
        other = next(d for d in CPU.accepted_dtypes if d is not self.dtype())
        with refused(TypeError, "dtype must match", "a move converts nothing"):
            move(tensor, CPU(0, dtype=other))
        token = carrier._claim_ownership()
        with refused(RuntimeError, "owned", "an owned carrier is not moved"):
            move(tensor, CPU(0, dtype=self.dtype()))
        carrier._relinquish_ownership(token)
        require(read_everything(carrier) == values.tolist(), "a refused move changes nothing")
        require(not carrier.is_owned() and not carrier.is_released(), "a refused move leaves its source free")
        carrier.release()
        with refused(RuntimeError, "released", "a released carrier is not moved"):
            move(tensor, CPU(0, dtype=self.dtype()))

    def _refuses_route(self, source: Carrier, destination: Carrier, tensor: Tensor) -> None:
        """A pair without a route says which pair it is, and changes nothing."""
        before = source.version, destination.version, destination.size()
        with refused(NotImplementedError, type(source).__name__, "a move without a route names both classes"):
            move(tensor, destination)
        require((source.version, destination.version, destination.size()) == before, "a refused move changes nothing")
        for carrier in (source, destination):
            require(not carrier.is_owned() and not carrier.is_released(), "a refused move leaves both carriers free")


class MovingContract(OutwardContract):
    """The rules of moving values both ways; they need `fresh`, which makes carriers that can be written.

    >>> from strideweave.testing import CarrierContract
    >>> from strideweave.testing.moving import MovingContract
    >>> issubclass(CarrierContract, MovingContract)
    True
    """

    def fresh(self, *, mutable: bool = True, size: int = SIZE) -> Carrier:
        """A carrier of zeros."""
        raise NotImplementedError("fresh() of a contract is given by CarrierContract: subclass that one")

    def test_move_in_carries_every_value_of_the_layout(self) -> None:
        """Into an empty carrier, a full one and a larger one; the version counts it once."""
        for name, layout in LAYOUTS.items():
            sizes = [layout.cosize, SIZE + 6] if self.is_fixed_size else [0, layout.cosize, SIZE + 6]
            for size in sizes:
                values = self.sample()
                source, destination = _memory(values), self.fresh(size=size)
                offset = SIZE - layout.cosize
                tensor = Tensor(source, offset, layout)
                if not self.accepts_moves:
                    self._refuses_route(source, destination, tensor)
                    return
                version = destination.version
                with works(f"a Tensor moves from memory into {size} slots ({name})"):
                    moved = move(tensor, destination)
                _require_moved(moved, destination, layout, values[offset:], name)
                require(
                    destination.version == version + 1,
                    "a move advances the version of its destination by one",
                    destination.version - version,
                )
                require(source.is_released(), "the carrier that values were moved out of is released")
                rest = read_everything(destination)[layout.cosize :]
                require(rest == [0] * len(rest), "a move leaves the slots beyond its Layout as they are", rest)

    def test_move_into_a_carrier_that_is_not_free_is_refused(self) -> None:
        """Released, owned, immutable, too small, of another dtype: before anything changes."""
        if not self.accepts_moves:
            return
        values = self.sample()
        source = _memory(values)
        tensor = Tensor(source, 0, Layout.column_major(SIZE))
        with refused(RuntimeError, "must be mutable", "an immutable carrier takes no values"):
            move(tensor, self.fresh(mutable=False))
        with refused(ValueError, "too small", "a carrier that has slots, but too few, takes no values"):
            move(tensor, self.fresh(size=SIZE - 1))
        other = next((d for d in self.stored_dtypes() if d is not self.dtype()), None)
        destination = self.fresh()
        if other is not None:
            wrong = Tensor(_memory(pattern(SIZE, other)), 0, Layout.column_major(SIZE))
            with refused(TypeError, "dtype must match", "a move converts nothing"):
                move(wrong, destination)
        token = destination._claim_ownership()
        with refused(RuntimeError, "mutable|owned", "an owned carrier takes no values"):
            move(tensor, destination)
        destination._relinquish_ownership(token)
        require(read_everything(destination) == [0] * SIZE, "a refused move changes nothing")
        require(destination.version == 0 or self.is_fixed_size, "a refused move counts no version", destination.version)
        destination.release()
        with refused(RuntimeError, "released", "a released carrier takes no values"):
            move(tensor, destination)
        require(read_everything(source) == values.tolist(), "a refused move leaves the source as it is")
        require(source.is_mutable(), "a refused move leaves the source free")

    def test_move_there_and_back_keeps_every_value(self) -> None:
        """What comes back is a carrier in memory with the same values."""
        if not self.accepts_moves:
            return
        for layout in (Layout.row_major(4, 6), LAYOUTS["nested modes"]):
            values = self.sample(1)
            destination = self.fresh()
            with works("a Tensor moves there and back"):
                there = move(Tensor(_memory(values), 0, layout), destination)
                back = move(there, CPU(0, dtype=self.dtype()))
            _require_moved(back, back.carrier, layout, values, "there and back")
            require(destination.is_released(), "the carrier that values were moved out of is released")


def _memory(values: torch.Tensor) -> CPU:
    return CPU.wrap(values.clone())


def _require_moved(moved: Tensor, destination: Carrier, layout: Layout, values: torch.Tensor, name: str) -> None:
    require(moved.carrier is destination, "the moved Tensor is over the destination")
    require((moved.offset, moved.layout) == (0, layout), "a moved Tensor keeps its Layout, at offset 0", moved)
    require(not destination.is_owned(), "a finished move owns nothing")
    wanted = [values[layout.index(k)].item() for k in range(layout.size)]
    found = [moved[k] for k in range(layout.size)]
    require(found == wanted, f"a moved Tensor has the values it had ({name})", found)
