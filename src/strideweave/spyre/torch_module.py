"""The module `torch.spyre`: what a device module of torch has, for the one card in software."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from strideweave.spyre.kernels import DEVICE_NAME, untraced

_functions: Final[dict[str, Callable[..., Any]]] = {}


def _public(function: Callable[..., Any]) -> Callable[..., Any]:
    _functions[function.__name__] = untraced(function)
    return function


@dataclass(frozen=True, slots=True)
class SpyreDeviceProperties:
    """What the card is. Units: bytes.

    >>> from strideweave.spyre.torch_module import get_device_properties
    >>> get_device_properties().name
    'Spyre, simulated'
    """

    name: str
    total_memory: int
    multi_processor_count: int


@_public
def is_available() -> bool:
    """There is always a card: it is software."""
    return True


@_public
def is_initialized() -> bool:
    """The card needs no start."""
    return True


@_public
def is_built() -> bool:
    """The card comes with this package."""
    return True


@_public
def init() -> None:
    """The card needs no start."""


@_public
def _lazy_init() -> None:
    """The card needs no start."""


@_public
def _is_in_bad_fork() -> bool:
    """A forked process has a copy of the card's memory, and may use it."""
    return False


@_public
def device_count() -> int:
    """One card."""
    return 1


@_public
def current_device() -> int:
    """The card's number."""
    return 0


def _require_card(device: Any) -> int:
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    if index not in (None, 0, -1):
        raise RuntimeError(
            f"cannot use {DEVICE_NAME} number {index}: there is one card, number 0. Pass 0, or leave it out."
        )
    return 0


@_public
def set_device(device: Any) -> None:
    """The card is the current one, which it always is."""
    _require_card(device)


@contextlib.contextmanager
def device(device: Any) -> Iterator[None]:
    """A context in which the card is the current one, which it always is."""
    _require_card(device)
    yield


@_public
def synchronize(device: Any = None) -> None:
    """Everything is done when an operation returns."""
    _require_card(device)


@_public
def get_device_name(device: Any = None) -> str:
    """The name says that the card is simulated."""
    _require_card(device)
    return "Spyre, simulated"


@_public
def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
    """Name, memory and cores."""
    from strideweave.spyre import config
    from strideweave.spyre.storage import card

    _require_card(device)
    return SpyreDeviceProperties(get_device_name(), card().capacity, config.sencores)


@_public
def get_device_capability(device: Any = None) -> dict[str, Any]:
    """The dtypes that the card holds."""
    return {"supported_dtypes": {d for d in vars(torch).values() if isinstance(d, torch.dtype) and _is_held(d)}}


def _is_held(dtype: torch.dtype) -> bool:
    from strideweave.spyre.sticks import format_of

    return not str(dtype).startswith(("torch.q", "torch.bits")) and format_of(dtype) is not None


@_public
def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may compute in."""
    return [torch.float16, torch.bfloat16]


# -- memory ----------------------------------------------------------------------------------------------------------


@_public
def memory_allocated(device: Any = None) -> int:
    """Bytes of device memory in live tensors, padding included."""
    from strideweave.spyre.storage import card

    return card().allocated_bytes


@_public
def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that were live at once since the last reset."""
    from strideweave.spyre.storage import card

    return card().peak


@_public
def memory_reserved(device: Any = None) -> int:
    """Bytes in live tensors, or freed and kept for the next."""
    from strideweave.spyre.storage import card

    return card().reserved


@_public
def max_memory_reserved(device: Any = None) -> int:
    """As `memory_reserved`, at least the peak of allocation."""
    from strideweave.spyre.storage import card

    return max(card().reserved, card().peak)


@_public
def reset_peak_memory_stats(device: Any = None) -> None:
    """The peak is what is allocated now."""
    from strideweave.spyre.storage import card

    card().reset_peak()


@_public
def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing is accumulated."""


@_public
def memory_stats(device: Any = None) -> dict[str, int]:
    """Allocated, peak, reserved and capacity in bytes, and how many blocks are live."""
    from strideweave.spyre.storage import card

    found = card().statistics()
    return {
        "allocated_bytes.all.current": found.allocated_nbytes,
        "allocated_bytes.all.peak": found.peak_nbytes,
        "reserved_bytes.all.current": found.reserved_nbytes,
        "capacity_bytes": found.capacity_nbytes,
        "allocation.all.current": found.allocation_count,
        "allocation.all.allocated": found.allocations_ever,
    }


@_public
def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes."""
    from strideweave.spyre.storage import card

    return card().capacity - card().allocated_bytes, card().capacity


@_public
def get_memory_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes."""
    found: tuple[int, int] = mem_get_info(device)
    return found


@_public
def empty_cache() -> None:
    """Freed memory goes back to the system."""
    from strideweave.spyre.storage import card

    card().trim()


# -- random numbers: the CPU's generator -----------------------------------------------------------------------------


@_public
def manual_seed(seed: int) -> None:
    """Random numbers on the card are the CPU's after the same seed: both come from the CPU's generator."""
    torch.default_generator.manual_seed(int(seed))


@_public
def manual_seed_all(seed: int) -> None:
    """As `manual_seed`; `torch.manual_seed` seeds the same generator itself."""
    torch.default_generator.manual_seed(int(seed))


@_public
def seed() -> None:
    """A seed drawn by the system."""
    torch.default_generator.seed()


@_public
def seed_all() -> None:
    """A seed drawn by the system."""
    torch.default_generator.seed()


@_public
def initial_seed() -> int:
    """The seed in force."""
    return torch.default_generator.initial_seed()


@_public
def get_rng_state(device: Any = None) -> torch.Tensor:
    """The state of the CPU's generator, which the card draws from."""
    return torch.default_generator.get_state()


@_public
def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """The state of the CPU's generator is `new_state`."""
    torch.default_generator.set_state(new_state)


@_public
def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all cards."""
    return [get_rng_state()]


@_public
def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """The states of all cards."""
    for state in new_states:
        set_rng_state(state)


def make() -> types.ModuleType:
    """The module, for torch to keep under its name."""
    module = types.ModuleType(f"torch.{DEVICE_NAME}", __doc__)
    for name, function in _functions.items():
        setattr(module, name, function)
    module.device = device  # type: ignore[attr-defined]
    module.Stream = torch.Stream  # type: ignore[attr-defined]
    module.Event = torch.Event  # type: ignore[attr-defined]
    module.default_generators = (torch.default_generator,)  # type: ignore[attr-defined]
    return module
