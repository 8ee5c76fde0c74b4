"""What the analysis finds and what it decides: values without behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChunkingInfo:
    """One device coordinate whose span is above the limit. Units: bytes and elements, as the names say."""

    total_bytes: int
    """The whole tensor in device memory."""
    per_core_span: int
    """What one core spans along this coordinate and all inside it."""
    core_split_estimate: int
    """Over how many cores the coordinate is taken to be divided: 1, so that tiles are safe by themselves."""
    selected_device_dim_size: int
    """How many values the coordinate takes."""
    selected_device_span_stride_elems: int
    """The elements inside one step of it."""
    selected_host_dim: int
    """The output dim that controls it; of a level over parts of a reduction, the reduction dim."""
    stick_elems: int
    reason: str


@dataclass(frozen=True, slots=True)
class InputSpanInfo:
    """An overflowing coordinate of something that is read, and the symbol by which it can be divided."""

    chunking_info: ChunkingInfo
    dep_name: str
    controlling_symbol: object


@dataclass(frozen=True, slots=True)
class SpanOverflowCandidate:
    """An overflow, and where it was seen: "output" or "input:NAME"."""

    chunking_info: ChunkingInfo
    source: str


@dataclass(frozen=True, slots=True)
class SpanOverflowTileLevel:
    """One loop: which dim it divides, and into how many tiles."""

    selected_host_dim: int
    split_count: int
    is_reduction: bool = False
    """Whether the dim is one of the reduction's."""
    tile_extent: int | None = None
    """The range of a tile where the last one is shorter; None where the count divides the range."""


@dataclass(frozen=True, slots=True)
class SpanOverflowTilePlan:
    """The loops of one operation, outermost first, and what they are for."""

    levels: tuple[SpanOverflowTileLevel, ...]
    chunking_infos: tuple[ChunkingInfo, ...]
    """Everything that overflowed; may be more than there are levels."""
    reason: str


@dataclass(frozen=True, slots=True)
class OperandSpan:
    """The window of one operand, untiled and in a tile. Units: bytes; None where it cannot be determined."""

    name: str
    is_input: bool
    untiled_nbytes: int | None
    tiled_nbytes: int | None


@dataclass(slots=True)
class SpanAnalysis:
    """All that was looked at for one operation."""

    op: str
    candidates: tuple[SpanOverflowCandidate, ...] = ()
    operands: tuple[OperandSpan, ...] = ()
    rejected: list[tuple[str, str]] = field(default_factory=list)
    """Splits that were not taken, each with the reason; of many alike the first."""
    plan: SpanOverflowTilePlan | None = None
    note: str = ""
    """Why there is no plan, or what kind of plan it is."""

    def reject(self, split: str, reason: str) -> None:
        """Keep why a split was not taken."""
        if len(self.rejected) < 32:
            self.rejected.append((split, reason))

    def lines(self) -> list[str]:
        """The same as text, a line for each thing that was found."""
        found = [
            f"{c.source}: output dim {c.chunking_info.selected_host_dim} spans {c.chunking_info.per_core_span} bytes"
            for c in self.candidates
        ]
        found += [f"rejected {split}: {reason}" for split, reason in self.rejected]
        if self.plan is not None:
            found.append("planned " + describe(self.plan.levels) + (f" ({self.note})" if self.note else ""))
        elif self.note:
            found.append(f"no tiles: {self.note}")
        return found


def describe(levels: tuple[SpanOverflowTileLevel, ...]) -> str:
    """Levels as text.

    >>> describe((SpanOverflowTileLevel(1, 5), SpanOverflowTileLevel(0, 3, is_reduction=True, tile_extent=256)))
    'dim 1 by 5, reduction dim 0 by 3 (tiles of 256, the last one shorter)'
    """
    parts = []
    for level in levels:
        which = "reduction dim" if level.is_reduction else "dim"
        uneven = "" if level.tile_extent is None else f" (tiles of {level.tile_extent}, the last one shorter)"
        parts.append(f"{which} {level.selected_host_dim} by {level.split_count}{uneven}")
    return ", ".join(parts)
