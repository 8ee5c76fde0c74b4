"""Reductions over boxes: each box on its own, then combined."""

from __future__ import annotations

from typing import Any, Final

import torch

from strideweave.spyre.prepared import Box, PreparedOp
from strideweave.spyre.steps import dtype_of

_ARGUMENT: Final = ("argmax", "argmin")
_CHUNK_ELEMS: Final = 2**17
"""Rows of about so many elements are brought together at once: they stay in a core's cache."""


class Reducer:
    """Combines values over the reduction symbols of an operation."""

    def __init__(self, prepared: PreparedOp) -> None:
        info = prepared.spec.op_info
        self._kind: str = info["reduction"]
        self._symbols = tuple(info["reduction_symbols"])
        self._dtype = dtype_of(info["accumulates_in"])
        self._prepared = prepared
        by_output: dict[tuple[int, ...], list[Box]] = {}
        for box in prepared.boxes:
            key = tuple(
                piece.start for s, piece in zip(prepared.symbols, box.pieces, strict=True) if s not in self._symbols
            )
            by_output.setdefault(key, []).append(box)
        self.groups = list(by_output.values())
        """The boxes whose values meet."""

    def kept(self, box: Box) -> list[int]:
        """The dims of a box that are not combined."""
        return [d for d, symbol in enumerate(self._owners(box)) if symbol not in self._symbols]

    def _gone(self, box: Box) -> list[int]:
        return [d for d, symbol in enumerate(self._owners(box)) if symbol in self._symbols]

    def _owners(self, box: Box) -> list[Any]:
        pairs = zip(self._prepared.symbols, box.pieces, strict=True)
        return [symbol for symbol, piece in pairs for _ in piece.digits]

    def combined(self, total: Any, value: torch.Tensor, box: Box) -> Any:
        """What has come together, with one more box."""
        value = value.reshape([1] * (len(box.sizes) - value.dim()) + list(value.shape)).expand(box.sizes)
        gone = self._gone(box)
        if self._kind in _ARGUMENT:
            return self._best(total, value, box, gone)
        part = self._reduced(value, gone)
        if total is None:
            return part
        if self._kind == "sum":
            return total + part
        if self._kind == "prod":
            return total * part
        if self._kind == "any":
            return total | part
        if self._kind == "xor_sum":
            return total ^ part
        return torch.maximum(total, part) if self._kind == "max" else torch.minimum(total, part)

    def _reduced(self, value: torch.Tensor, gone: list[int]) -> torch.Tensor:
        kind = self._kind
        if kind == "sum":
            return value.sum(gone, dtype=self._dtype) if gone else value.to(self._dtype)
        if kind == "any":
            return (value != 0).any(dim=gone) if gone else value != 0
        if kind in ("max", "min"):
            if value.dtype == torch.bool:
                value = value.to(torch.uint8)
            return (value.amax(gone) if kind == "max" else value.amin(gone)) if gone else value
        value = value.to(self._dtype)
        for dim in sorted(gone, reverse=True):
            if kind == "prod":
                value = value.prod(dim)
            else:
                result = value.select(dim, 0)
                for k in range(1, value.shape[dim]):
                    result = result ^ value.select(dim, k)
                value = result
        return value

    # -- the places of extremes ----------------------------------------------------------------------------------------

    def _best(self, total: Any, value: torch.Tensor, box: Box, gone: list[int]) -> Any:
        kept = self.kept(box)
        sizes = [box.sizes[d] for d in kept]
        places = self._places(box, gone)
        # The first of equal ones in the order of places, which is not always that of the digits.
        order = None if bool((places.diff() > 0).all()) else places.argsort()
        if order is not None:
            places = places[order]
        values = value.permute([*kept, *gone])
        count = max(1, _CHUNK_ELEMS * max(sizes[:1], default=1) // max(value.numel(), 1)) if sizes else 1
        found = [self._extremes(part, len(kept), order) for part in (torch.split(values, count) if sizes else [values])]
        best = torch.cat([b for b, _ in found]) if sizes else found[0][0]
        where = torch.cat([w for _, w in found]) if sizes else found[0][1]
        place = places[where]
        if total is None:
            return best, place
        known, known_place = total
        is_better = _wins(best, known, largest=self._kind == "argmax")
        is_same = _same(best, known) & (place < known_place)
        take = is_better | is_same
        return torch.where(take, best, known), torch.where(take, place, known_place)

    def _extremes(
        self, values: torch.Tensor, rank: int, order: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The extreme of each row of a part, and which it is; narrow floats as Float32, in which torch is quick."""
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.to(torch.float32)
        elif values.dtype == torch.bool:
            values = values.to(torch.uint8)
        flat = values.reshape([*values.shape[:rank], -1])
        if order is not None:
            flat = flat[..., order]
        where = flat.argmax(-1) if self._kind == "argmax" else flat.argmin(-1)
        return flat.gather(-1, where.unsqueeze(-1)).squeeze(-1), where

    def _places(self, box: Box, gone: list[int]) -> torch.Tensor:
        """The ordinal of every combination of the reduction symbols of a box, the last symbol fastest."""
        places = torch.zeros(1, dtype=torch.int64)
        extents = {s: self._prepared.ranges[s] for s in self._symbols}
        for symbol, piece in zip(self._prepared.symbols, box.pieces, strict=True):
            if symbol not in self._symbols:
                continue
            values = torch.tensor([piece.start], dtype=torch.int64)
            for digit in piece.digits:
                values = (values[:, None] + torch.arange(digit.extent) * digit.step).reshape(-1)
            later = self._symbols[self._symbols.index(symbol) + 1 :]
            weight = 1
            for other in later:
                weight *= extents[other]
            places = (places[:, None] + values[None, :] * weight).reshape(-1)
        return places

    def finished(self, total: Any, box: Box) -> torch.Tensor:
        """The values to store."""
        found: torch.Tensor = total[1] if self._kind in _ARGUMENT else total
        return found


def _wins(a: torch.Tensor, b: torch.Tensor, *, largest: bool) -> torch.Tensor:
    better = a > b if largest else a < b
    return better | (a.isnan() & ~b.isnan()) if a.is_floating_point() else better


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b
