"""What a provider may not change stays as it is: operands are shielded while it works, and put back when it fails.

Costs, for one call. Nothing for an operand that is only read, beyond a shield on its carrier: to write, release or take
over the carrier is refused while the provider works, whoever tries. A carrier of at most `COMPARED_SLOTS` slots is also
read before and compared after, so that a kernel that reaches into its memory is found out: a test of a few values finds
it, and a large operand costs nothing more, nor is found out. What the resolution declares as mutated is read before, as
far as its Tensor spans: a failure has to bring it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from strideweave.carriers.carrier import RELEASE, TAKE_OVER, Carrier
from strideweave.operation.call import ProviderContractError, ResolvedInvocation
from strideweave.tensor.tensor import Tensor

COMPARED_SLOTS = 1024
"""Up to how many slots a carrier that may not change is compared, before and after."""

T = TypeVar("T")


def guarded(invocation: ResolvedInvocation, work: Callable[[], T], *, compares: bool) -> T:
    """What `work` returns, when it changed nothing but the operands that the resolution declares as mutated.

    When it fails or changed more, values, versions and ownership of all operands are as before. Errors: what `work`
    raises; ProviderContractError for a change that was not declared.
    """
    kept = _keep(invocation, compares=compares)
    for one in kept:
        with one.carrier._owner_lock:
            one.carrier._shields = (*one.carrier._shields, one.refuse)
    try:
        outcome = work()
        _require_kept(invocation, kept)
    except BaseException as error:
        changed = _changes(kept)
        for one in kept:
            one.put_back()
        if changed and isinstance(error, Exception) and not isinstance(error, ProviderContractError):
            raise ProviderContractError(_blame(invocation, changed)) from error
        raise
    finally:
        for one in kept:
            with one.carrier._owner_lock:
                # Equal, not identical: every access makes a new bound method.
                one.carrier._shields = tuple(s for s in one.carrier._shields if s != one.refuse)
    for one in kept:
        if one.is_declared and one.carrier.version == one.version:
            one.carrier._increment_version()
    return outcome


@dataclass(slots=True, eq=False)
class _Kept:
    """One operand's carrier as it was."""

    carrier: Carrier
    is_declared: bool
    version: int
    owner: int | None
    start: int
    values: torch.Tensor | None
    thread: int = field(default_factory=threading.get_ident)
    attempt: str | None = None

    def refuse(self, what: str) -> None:
        if self.is_declared and what not in (RELEASE, TAKE_OVER):
            return
        if threading.get_ident() == self.thread:  # others are told, and the provider is not blamed for them
            self.attempt = what
        raise RuntimeError(
            f"cannot {what} {self.carrier!r}: it is an operand of an operation that runs, which does not declare that. "
            "Operands stay as they are until it ends. Wait for it, or declare mutated_operands."
        )

    def change(self) -> str | None:
        """What is not as it was; None for a declared carrier, whose values may be anything."""
        if self.attempt is not None:
            return f"it tried to {self.attempt} an operand on {type(self.carrier).__name__}"
        if self.carrier._owner != self.owner:
            return f"it changed the ownership of an operand on {type(self.carrier).__name__}"
        if self.is_declared:
            return None
        if self.carrier.version != self.version:
            return f"it changed the version of an operand on {type(self.carrier).__name__}"
        if self.values is not None and not _equal(self.values, _read(self.carrier, self.start, self.values.numel())):
            return f"it changed values of an operand on {type(self.carrier).__name__}"
        return None

    def put_back(self) -> None:
        carrier = self.carrier
        if self.values is not None and not _equal(self.values, _read(carrier, self.start, self.values.numel())):
            _write(carrier, self.start, self.values)
        carrier._version = self.version
        with carrier._owner_lock:
            carrier._owner = self.owner


def _keep(invocation: ResolvedInvocation, *, compares: bool) -> list[_Kept]:
    spans: dict[int, tuple[Carrier, int, int]] = {}
    carriers: dict[int, Carrier] = {}
    for k, operand in enumerate(invocation.operands):
        if not isinstance(operand, Tensor):
            continue
        carrier = operand.carrier
        carriers[id(carrier)] = carrier
        if k in invocation.mutated_operands:
            carrier._require_writable(f"run {invocation.name}, which changes operand {k}, on")
            _, start, stop = spans.get(id(carrier), (carrier, operand.offset, 0))
            spans[id(carrier)] = carrier, min(start, operand.offset), max(stop, operand.offset + operand.layout.cosize)
    kept = []
    for key, carrier in carriers.items():
        start, values = 0, None
        if key in spans:
            _, start, stop = spans[key]
            values = _read(carrier, start, stop - start)
        elif compares and carrier.size() <= COMPARED_SLOTS:
            values = _read(carrier, 0, carrier.size())
        kept.append(_Kept(carrier, key in spans, carrier.version, carrier._owner, start, values))
    return kept


def _changes(kept: list[_Kept]) -> list[str]:
    return [change for one in kept if (change := one.change()) is not None]


def _require_kept(invocation: ResolvedInvocation, kept: list[_Kept]) -> None:
    changed = _changes(kept)
    if changed:
        raise ProviderContractError(_blame(invocation, changed))


def _blame(invocation: ResolvedInvocation, changed: list[str]) -> str:
    return (
        f"cannot accept what the provider of {invocation.name} did: {'; '.join(changed)}. It may change "
        f"mutated_operands {invocation.mutated_operands} and nothing else; all is as it was before. Mend the provider."
    )


def _read(carrier: Carrier, start: int, count: int) -> torch.Tensor:
    out = torch.empty(count, dtype=carrier.dtype().torch_dtype)
    try:
        carrier._read_runs([(start, out)])
    except NotImplementedError:  # tiles are no runs
        for k in range(count):
            out[k] = carrier.get_value(start + k)
    return out


def _write(carrier: Carrier, start: int, values: torch.Tensor) -> None:
    try:
        carrier._write_runs([(start, values)])
    except NotImplementedError:
        for k, value in enumerate(values.tolist(), start):
            carrier.set_value(k, value)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
