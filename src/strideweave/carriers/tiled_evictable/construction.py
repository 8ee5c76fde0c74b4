"""What a tiled carrier may be made of: the checks of its constructor, in their order, before anything is taken over."""

from __future__ import annotations

from strideweave.carriers.block_device import BlockDeviceCarrier
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.checkpoint_file import CheckpointFile
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.tiled_evictable.budget import format_nbytes, parse_nbytes
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.policy import ResidencyPolicy


def require_tiers(primary: Carrier, secondary: Carrier) -> None:
    """Both are ordinary live carriers of one dtype that nobody owns, and primary is of a class that computes."""
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if not isinstance(tier, Carrier):
            raise TypeError(
                f"cannot use {type(tier).__name__} as {name}: it must be a Carrier. Pass CPU(0) or FileBacked()."
            )
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if tier._is_dependent():
            raise TypeError(f"cannot use {tier!r} as {name}: a tier is an ordinary carrier. Pass CPU or FileBacked.")
    if primary is secondary:
        raise ValueError("cannot use one carrier as both tiers: they must be two. Pass another secondary.")
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if tier.is_released():
            raise RuntimeError(f"cannot use {tier!r} as {name}: it is released. Pass a live carrier.")
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if tier.is_owned():
            raise RuntimeError(f"cannot use {tier!r} as {name}: it is owned. Pass a carrier that nothing else owns.")
    if primary.dtype() is not secondary.dtype():
        raise TypeError(
            f"cannot tile {primary.dtype().name} over {secondary.dtype().name}: both tiers hold one dtype. Make them "
            "match."
        )
    # A class of somebody else may compute, or only store: that is theirs to know. Ours that only store are no
    # primary: tiers that were exchanged by mistake would work, and be slow.
    if isinstance(primary, FileBacked | CheckpointFile | BlockDeviceCarrier):
        raise TypeError(
            f"cannot use {primary!r} as primary: its values are not in memory, where kernels work. Pass CPU(0, "
            "dtype=...)."
        )


def require_extents(primary: Carrier, secondary: Carrier, geometry: Geometry) -> None:
    """Each is empty, or holds exactly the slots of the tiles."""
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if tier.size() not in (0, geometry.extent):
            raise ValueError(
                f"cannot use {tier!r} as {name}: it has {tier.size()} slots and the tiles have {geometry.extent}. A "
                "tier is empty, or full. Pass one of these."
            )


def require_policy(policy: object) -> None:
    """It is none, or has a method `plan`."""
    if policy is None:
        return
    if not isinstance(policy, ResidencyPolicy):
        raise TypeError(
            f"cannot use {policy!r} as residency_policy: it has no method plan(required, purpose). Pass a "
            "ResidencyPolicy."
        )
    if not callable(policy.plan):
        raise TypeError(f"cannot use {policy!r} as residency_policy: its plan is not callable. Pass a ResidencyPolicy.")


def capacity_of(budget: int | str | None, primary: Carrier, geometry: Geometry) -> int:
    """How many tiles a budget holds."""
    tile_nbytes = geometry.tile_elems * primary.dtype().itemsize
    if budget is None:
        return geometry.tiles
    nbytes = parse_nbytes(budget)
    if nbytes < tile_nbytes:
        raise ValueError(
            f"cannot hold tiles of {format_nbytes(tile_nbytes)} ({tile_nbytes} bytes) in a budget of "
            f"{format_nbytes(nbytes)} ({nbytes} bytes): the budget must hold at least one tile. Raise it to "
            f"{tile_nbytes} bytes or more."
        )
    if primary.size() and nbytes < primary.nbytes:
        raise ValueError(
            f"cannot keep a full primary of {format_nbytes(primary.nbytes)} in a budget of {format_nbytes(nbytes)}: "
            "a full primary is the tier itself. Leave the budget out, or pass an empty primary and a full secondary."
        )
    return min(nbytes // tile_nbytes, geometry.tiles)
