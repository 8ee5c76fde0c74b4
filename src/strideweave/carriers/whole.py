"""Runs and allocations of a carrier that are whole, or an error: a carrier that falls short is not believed."""

from __future__ import annotations

import torch

from strideweave.carriers.carrier import Carrier


def read_all(carrier: Carrier, start: int, out: torch.Tensor) -> None:
    """Fill `out` with the slots from `start` on. Errors: the carrier's own; OSError when it read less."""
    _require(carrier, "read", carrier._read_runs([(start, out)]), out.nbytes, "bytes")


def write_all(carrier: Carrier, start: int, values: torch.Tensor) -> None:
    """The slots from `start` on hold `values`. Errors: the carrier's own; OSError when it wrote less."""
    _require(carrier, "write", carrier._write_runs([(start, values)]), values.nbytes, "bytes")


def allocate_all(carrier: Carrier, size: int) -> None:
    """Give an empty carrier its slots. Errors: the carrier's own; OSError, and no slots, when it has others then."""
    carrier._allocate(size)
    try:
        _require(carrier, "allocate", carrier.size(), size, "slots")
    except OSError:
        carrier._free()
        raise


def _require(carrier: Carrier, what: str, found: int, wanted: int, unit: str) -> None:
    if found != wanted:
        raise OSError(
            f"cannot {what} {wanted} {unit} of {carrier!r}: it says {found}. A carrier does all of what it is asked, "
            "or raises. Look at its storage, and try again."
        )
