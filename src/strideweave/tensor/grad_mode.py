"""Whether operations are recorded for a backward pass: a flag of each thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Mode(threading.local):
    enabled = True


mode = _Mode()
"""The flag itself; `mode.enabled` is read on every operation."""


def is_grad_enabled() -> bool:
    """Whether this thread records operations on tensors that require gradients.

    >>> import strideweave as sw
    >>> sw.is_grad_enabled()
    True
    """
    return mode.enabled


def set_grad_enabled(enabled: bool) -> None:
    """From now on this thread records operations, or does not. Errors: TypeError for anything but a bool.

    >>> import strideweave as sw
    >>> sw.set_grad_enabled(False)
    >>> sw.is_grad_enabled()
    False
    >>> sw.set_grad_enabled(True)
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"cannot set grad mode to {enabled!r}: it is on or off. Pass True or False.")
    mode.enabled = enabled


@contextmanager
def no_grad() -> Iterator[None]:
    """A block, or a decorated function, in which this thread records nothing.

    >>> import strideweave as sw
    >>> w = sw.tensor([1.0, 2.0], requires_grad=True)
    >>> with sw.no_grad():
    ...     y = w * 2
    >>> y.requires_grad
    False
    """
    before = mode.enabled
    mode.enabled = False
    try:
        yield
    finally:
        mode.enabled = before
