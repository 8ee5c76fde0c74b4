"""How a broken rule is told: an AssertionError with the rule, and what was found instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from strideweave.carriers.carrier import Carrier, Scalar
from strideweave.dtype import DType, StorageDType


def require(holds: bool, rule: str, found: object = None) -> None:
    """Nothing, when the rule holds. Errors: AssertionError that states it.

    >>> from strideweave.testing.rules import require
    >>> require(1 + 1 == 2, "sums are sums")
    >>> require(1 + 1 == 3, "two ones make three", "2")
    Traceback (most recent call last):
    AssertionError: a rule of carriers is broken: two ones make three. Found: 2
    """
    if not holds:
        raise AssertionError(f"a rule of carriers is broken: {rule}." + ("" if found is None else f" Found: {found}"))


@contextmanager
def works(rule: str) -> Iterator[None]:
    """The block runs without an error. Errors: AssertionError that states the rule, from the error there was.

    >>> from strideweave.testing.rules import works
    >>> with works("a list has a first item"):
    ...     [][0]
    Traceback (most recent call last):
    AssertionError: a rule of carriers is broken: a list has a first item. Found: IndexError: list index out of range
    """
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"a rule of carriers is broken: {rule}. Found: {type(error).__name__}: {error}") from error


@contextmanager
def refused(kinds: type[Exception] | tuple[type[Exception], ...], words: str, rule: str) -> Iterator[None]:
    """The block raises one of `kinds`, and its message has one of `words` (parted by `|`; none asks for nothing).

    >>> from strideweave.testing.rules import refused
    >>> with refused(IndexError, "out of range", "a list ends"):
    ...     [][0]
    >>> with refused(IndexError, "", "a list ends"):
    ...     pass
    Traceback (most recent call last):
    AssertionError: a rule of carriers is broken: a list ends. Found: nothing was raised, where IndexError was due
    """
    due = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    try:
        yield
    except kinds as error:
        wanted = [word for word in words.split("|") if word]
        if wanted and not any(word.lower() in str(error).lower() for word in wanted):
            asked = " or ".join(repr(word) for word in wanted)
            require(False, rule, f"{type(error).__name__} without the words {asked}: {error}")
        return
    except AssertionError as error:
        require(False, rule, f"an AssertionError where {due} was due: {error}")
    except Exception as error:
        raise AssertionError(
            f"a rule of carriers is broken: {rule}. Found: {type(error).__name__} where {due} was due: {error}"
        ) from error
    require(False, rule, f"nothing was raised, where {due} was due")


def same_values(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two tensors of one dtype hold the same bytes, any NaN being as good as any other.

    >>> import torch
    >>> from strideweave.testing.rules import same_values
    >>> same_values(torch.tensor([float("nan"), 0.0]), torch.tensor([float("nan"), -0.0]))
    False
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    size = found.element_size()
    equal = (found.contiguous().view(torch.uint8) == wanted.contiguous().view(torch.uint8)).view(-1, size).all(dim=1)
    if found.dtype.is_floating_point:
        wide = torch.stack((found.to(torch.float64), wanted.to(torch.float64))).isnan().all(dim=0)
        equal |= wide.reshape(-1)
    return bool(equal.all())


def special_values(dtype: StorageDType) -> torch.Tensor:
    """The values of a dtype that storage is likely to lose: its limits, and for floating ones NaN, infinity and -0.0.

    >>> from strideweave import DType
    >>> from strideweave.testing.rules import special_values
    >>> special_values(DType.Int8)
    tensor([-128,  127,    0,    1,   -1], dtype=torch.int8)
    """
    plain = dtype.torch_dtype
    if dtype is DType.Bool:
        return torch.tensor([True, False])
    if not dtype.is_floating:
        limits = torch.iinfo(plain)
        return torch.tensor([limits.min, limits.max, 0, 1, -1 if limits.min else 2], dtype=plain)
    facts = torch.finfo(plain)
    least = facts.smallest_normal * facts.eps  # the smallest subnormal number
    wide = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, facts.max, facts.min, least, 1.0 + facts.eps, -1.5]
    return torch.tensor(wide, dtype=torch.float64).to(plain)


def pattern(size: int, dtype: StorageDType, *, salt: int = 0) -> torch.Tensor:
    """`size` values that `dtype` holds exactly and that differ from their neighbours; another `salt`, other values.

    >>> from strideweave import DType
    >>> from strideweave.testing.rules import pattern
    >>> pattern(4, DType.Int8)
    tensor([1, 2, 3, 4], dtype=torch.int8)
    """
    several = 7 if dtype.is_floating and dtype.itemsize == 1 else 97  # whole numbers that every dtype of the kind holds
    counted = (torch.arange(size) * (salt + 1) + salt) % several + 1
    if dtype is DType.Bool:
        return ((torch.arange(size) + 31 * salt) * 2654435761 >> 9) % 2 == 0
    return counted.to(torch.float32).to(dtype.torch_dtype)


def read_everything(carrier: Carrier) -> list[Scalar]:
    """Every slot, one by one.

    >>> from strideweave import CPU
    >>> from strideweave.testing.rules import read_everything
    >>> read_everything(CPU(2))
    [0.0, 0.0]
    """
    return [carrier[k] for k in range(carrier.size())]
