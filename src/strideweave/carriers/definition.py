"""What the base class of carriers knows of definitions: how a defined class stores, and which classes are sealed.

A class has storage of its own (it overrides the hooks of `Carrier`), or a definition, in exactly the class that was
registered: a subclass has none. What a class is, is settled when its first carrier is made, or when somebody asks what
it can compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, final

from strideweave.dtype import StorageDType

CLOSED: Final = frozenset(
    f"strideweave.carriers.{name}"
    for name in (
        "block_device.BlockDeviceCarrier",
        "checkpoint_file.CheckpointFile",
        "cpu.CPU",
        "cuda.CUDA",
        "evictable.Evictable",
        "file_backed.FileBacked",
        "generic.Generic",
        "metal.Metal",
        "tiled_evictable.carrier.TiledEvictable",
    )
)
"""The shipped classes, which nobody subclasses."""
DEFINED_HERE: Final = frozenset({"strideweave.carriers.tiled_evictable.carrier.TiledEvictable"})
"""Those of them that are installed by a definition, as a third party's class is."""


class CarrierFacet:
    """A marker for what a class can do beyond a carrier: found by exact type with `carrier.facet(T)`.

    >>> from strideweave import CPU
    >>> from strideweave.carriers.extension import CarrierFacet
    >>> class Compressed(CarrierFacet):
    ...     ratio = 2.0
    >>> CPU(1).facet(Compressed) is None
    True
    """


@final
@dataclass(frozen=True, slots=True)
class StorageProvider:
    """How a class without code of its own stores: functions that take the carrier first, and keep state on it.

    `supports_dtype(carrier, dtype) -> bool` looks at the dtype alone: it is asked before there is storage and after
    release. `physical_size(carrier) -> int` is the number of slots. `allocate(carrier, n) -> None` gives a carrier
    without slots `n` slots that read as zero; it is called for 0 too, and again when an empty carrier is given slots.
    `release(carrier) -> None` lets go of them. `read(carrier, i)` is the value of one slot; `write(carrier, i, value)
    -> None` puts one that the dtype holds: a float rounded to it, or an int or bool in its range.

    `read_runs(carrier, runs) -> int` and `write_runs(carrier, runs) -> int` move many slots at once: `runs` are pairs
    of a first slot and a contiguous 1-d torch tensor of the carrier's dtype to fill or to store; they return the bytes.
    Without them runs go slot by slot.

    What a function raises is raised as it is. Errors: TypeError ("must be callable", "must be a bool").

    >>> from strideweave.carriers.extension import StorageProvider
    >>> StorageProvider(
    ...     supports_dtype=lambda carrier, dtype: dtype.is_floating,
    ...     physical_size=lambda carrier: len(carrier.values),
    ...     allocate=lambda carrier, n: setattr(carrier, "values", [0.0] * n),
    ...     release=lambda carrier: carrier.values.clear(),
    ...     read=lambda carrier, i: carrier.values[i],
    ...     write=lambda carrier, i, value: carrier.values.__setitem__(i, value),
    ... ).elementwise_fallback
    False
    """

    supports_dtype: Callable[[Any, StorageDType], bool]
    """Whether carriers of the class can store a dtype."""
    physical_size: Callable[[Any], int]
    """The number of slots."""
    allocate: Callable[[Any, int], object]
    """Give an empty carrier slots that read as zero."""
    release: Callable[[Any], object]
    """Let go of the slots; not called for a carrier that is only dropped."""
    read: Callable[[Any, int], Any]
    """The value of one slot."""
    write: Callable[[Any, int, Any], object]
    """Put a value into one slot."""
    elementwise_fallback: bool = False
    """Whether values may move slot by slot where there is no TransferRoute."""
    read_runs: Callable[[Any, Sequence[tuple[int, Any]]], int] | None = field(default=None, kw_only=True)
    """Fill many slots' memory at once; the bytes read."""
    write_runs: Callable[[Any, Sequence[tuple[int, Any]]], int] | None = field(default=None, kw_only=True)
    """Store many slots' memory at once; the bytes written."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "elementwise_fallback":
                if not isinstance(value, bool):
                    raise TypeError(
                        f"cannot make a StorageProvider with {value!r}: elementwise_fallback must be a bool. Pass one."
                    )
            elif not callable(value) and not (one.name.endswith("_runs") and value is None):
                raise TypeError(
                    f"cannot make a StorageProvider with {value!r}: {one.name} must be callable. Pass a function."
                )


@final
@dataclass(frozen=True, slots=True)
class Installed:
    """What is settled for one exact class."""

    storage: StorageProvider
    """How it stores."""
    facets: Mapping[type[CarrierFacet], CarrierFacet]
    """What else it can do, by exact type."""
    is_dependent: bool
    """Whether its carriers are made of others, and establish their storage themselves."""


lock = threading.RLock()  # guards _installed, _seen and _declared, and whoever checks them before changing one
_installed: dict[type, Installed] = {}
_seen: dict[type, Installed | None] = {}
"""The classes that are sealed, read without the lock on every construction."""
_declared: dict[type, tuple[Any, ...]] = {}
"""Capabilities that were registered by hand for classes without a definition."""


def qualified(cls: type) -> str:
    """The full name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def installed(cls: type) -> Installed | None:
    """What was registered for exactly this class."""
    return _installed.get(cls)


def is_defined(cls: type) -> bool:
    """Whether exactly this class has a CarrierDefinition.

    >>> from strideweave import CPU
    >>> from strideweave.carriers.definition import is_defined
    >>> is_defined(CPU)
    False
    """
    return cls in _installed


def observe(cls: type) -> Installed | None:
    """What was registered for exactly this class, which is sealed from now on."""
    with lock:
        _seen.setdefault(cls, _installed.get(cls))
        return _seen[cls]


def is_observed(cls: type) -> bool:
    """Whether the class is sealed."""
    return cls in _seen


def install(cls: type, what: Installed) -> None:
    """From now on the class is defined. Whoever calls this has checked it, under `lock`."""
    _installed[cls] = what


def declare(cls: type, capabilities: Iterable[Any]) -> None:
    """More capabilities of a class without a definition. Errors: TypeError for a class that has one."""
    with lock:
        if cls in _installed:
            raise TypeError(
                f"cannot register operation capabilities for {cls.__name__}: it already has a CarrierDefinition, whose "
                "kernels say what it computes. Register a KernelPack."
            )
        _declared[cls] = tuple(dict.fromkeys((*_declared.get(cls, ()), *capabilities)))


def declared(cls: type) -> tuple[Any, ...] | None:
    """The capabilities that were registered by hand; None when there were none."""
    return _declared.get(cls)
