"""The order in which a move is checked: a request that breaks several rules is told of the first. Facts, section e."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import pytest
import torch

from strideweave import CPU, Carrier, DType, Layout, Tensor
from strideweave.carriers.extension import (
    CarrierDefinition,
    PreparedTransfer,
    TransferProvider,
    TransferRoute,
    register_carrier_definition,
)
from strideweave.carriers.move import move, move_async
from support.defined import defined, list_storage

LAYOUT = Layout.row_major(4)
ROUTELESS = defined(name="Routeless")
NO_WAY_BACK = type("NoWayBack", (Carrier,), {})


def never(request: object) -> PreparedTransfer:
    return PreparedTransfer(lambda: pytest.fail("a refused move is never submitted"))


register_carrier_definition(
    NO_WAY_BACK,
    CarrierDefinition(list_storage(), transfers=[TransferRoute(CPU, NO_WAY_BACK, "lab.in", TransferProvider(never))]),
)


@dataclass
class Wrongs:
    """What a request is to break, each by name; `build` makes such a request."""

    names: frozenset[str] = field(default_factory=frozenset)

    def build(self) -> tuple[object, object]:
        if "tensor" in self.names:
            return [1.0], self._destination(CPU(4))
        memory = torch.arange(8.0)
        source = CPU.wrap(memory[:4], mutable="mutable" not in self.names or "own" not in self.names)
        tensor = Tensor(source, 0, LAYOUT, requires_grad="reverse" in self.names)
        destination = self._destination(source, memory)
        if "source owned" in self.names:
            source._claim_ownership()
        if "source released" in self.names:
            source._released = True  # so that one that is owned can be released too
        return tensor, destination

    def _destination(self, source: CPU, memory: torch.Tensor | None = None) -> object:
        if "carrier" in self.names:
            return None
        if "own" in self.names:
            return source
        dtype = DType.Int32 if "dtype" in self.names else DType.Float32
        mutable = "mutable" not in self.names
        size = 2 if "small" in self.names else 4
        destination: Carrier
        if "route" in self.names:
            destination = ROUTELESS(size, dtype=dtype, mutable=mutable)
        elif "reverse" in self.names:
            destination = NO_WAY_BACK(size, dtype=dtype, mutable=mutable)
        elif "apart" in self.names and memory is not None:
            part = memory[2 : 2 + size]
            destination = CPU.wrap(part.view(torch.int32) if "dtype" in self.names else part, mutable=mutable)
        else:
            destination = CPU(size, dtype=dtype, mutable=mutable)
        if "destination released" in self.names:
            destination.release()
        return destination


RULES: list[tuple[str, type[Exception], str]] = [
    ("tensor", TypeError, "tensor must be a Tensor"),
    ("source released", RuntimeError, "tensor carrier is released"),
    ("source owned", RuntimeError, "owned"),
    ("carrier", TypeError, "Carrier instance"),
    ("own", ValueError, "own carrier"),
    ("destination released", RuntimeError, "destination carrier is released"),
    ("mutable", RuntimeError, "must be mutable"),
    ("dtype", TypeError, "dtype must match"),
    ("route", NotImplementedError, r"route \(CPU, Routeless\)"),
    ("small", ValueError, "too small"),
    ("apart", ValueError, "same bytes"),
    ("reverse", NotImplementedError, "reverse route"),
]
ORDER = {name: k for k, (name, _, _) in enumerate(RULES)}
NAMES = list(ORDER)
SEVERAL = dict.fromkeys(
    [
        *combinations(NAMES, 1),
        *combinations(NAMES, 2),
        *(tuple(NAMES[k:]) for k in range(len(NAMES))),  # that rule and every one after it
    ]
)
del SEVERAL["apart", "reverse"]  # carriers that share bytes have a way both ways


def state(thing: object) -> object:
    carrier = thing.carrier if isinstance(thing, Tensor) else thing
    if not isinstance(carrier, Carrier):
        return None
    return carrier.is_owned(), carrier.is_released(), carrier.version, carrier.size(), carrier._mutable


@pytest.mark.parametrize("request_with", [move, move_async])
@pytest.mark.parametrize("broken", SEVERAL, ids=" and ".join)
def test_request_that_breaks_several_rules_is_told_of_the_first(
    broken: tuple[str, ...], request_with: Callable[[object, object], object]
) -> None:
    _, kind, words = RULES[min(ORDER[name] for name in broken)]
    tensor, destination = Wrongs(frozenset(broken)).build()
    before = state(tensor), state(destination)
    with pytest.raises(kind, match=words) as caught:
        request_with(tensor, destination)
    assert type(caught.value) is kind
    assert (state(tensor), state(destination)) == before
