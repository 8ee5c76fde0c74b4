"""What providers of any kind hand back: a refusal, results, prepared work, and how its end is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

from strideweave.operation.call import ProviderContractError
from strideweave.tensor.tensor import Tensor


class CompletionError(ProviderContractError, TypeError):
    """What `submit` gave is no completion."""


@final
@dataclass(frozen=True, slots=True)
class Unsupported:
    """What `prepare` returns for work that it does not take: the next provider is asked.

    Errors: TypeError for no str; ValueError for an empty one.

    >>> from strideweave.carriers.extension import Unsupported
    >>> Unsupported("needs one contiguous mode").reason
    'needs one contiguous mode'
    """

    reason: str
    """Why, for the message that lists every refusal."""

    def __post_init__(self) -> None:
        require_text(self.reason, "a reason")


@final
@dataclass(frozen=True, slots=True)
class ProviderResult:
    """The Tensors that the work gave, in the order of the results that were resolved; at least one.

    Errors: TypeError for what are no Tensors; ValueError for none.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import ProviderResult
    >>> len(ProviderResult([sw.tensor([1.0])]).outputs)
    1
    """

    outputs: tuple[Tensor, ...]
    """The Tensors; an iterable is read once."""

    def __init__(self, outputs: Iterable[Tensor]) -> None:
        given = once(outputs, "outputs")
        for output in given:
            if not isinstance(output, Tensor):
                raise TypeError(
                    f"cannot make a ProviderResult of {type(output).__name__}: outputs are Tensors. Pass Tensors."
                )
        if not given:
            raise ValueError("cannot make a ProviderResult of nothing: an operation has at least one result. Pass it.")
        object.__setattr__(self, "outputs", given)


@runtime_checkable
class ProviderCompletion(Protocol):
    """Work that was submitted: `done` says whether it is over, `wait()` gives its outcome, or raises its error.

    It is waited for from any thread, any number of times, so it has no `__await__`. The outcome is a ProviderResult for
    kernels and composites, and None for transfers.

    >>> from strideweave.carriers.extension import ProviderCompletion
    >>> class Finished:
    ...     done = True
    ...     def wait(self):
    ...         return None
    >>> isinstance(Finished(), ProviderCompletion)
    True
    """

    @property
    def done(self) -> bool:
        """Whether `wait` returns or raises at once."""
        ...

    def wait(self) -> Any:
        """The outcome, the same at every call."""
        ...


def require_completion(given: object, *, what: str) -> ProviderCompletion:
    """`given` itself. Errors: a ProviderContractError that is a TypeError too, for what is no completion.

    >>> from strideweave.carriers.extension import require_completion
    >>> require_completion(None, what="move")
    Traceback (most recent call last):
    strideweave.carriers.extension.providers.CompletionError: cannot go on with move: it gave NoneType on submission...
    """
    if hasattr(given, "__await__"):
        raise CompletionError(
            f"cannot go on with {what}: it gave {type(given).__name__} on submission. A completion is waited for by "
            "threads, so it must not expose a coroutine. Give done and wait() alone."
        )
    if not isinstance(given, ProviderCompletion) or not callable(given.wait):
        raise CompletionError(
            f"cannot go on with {what}: it gave {type(given).__name__} on submission. That is a ProviderCompletion, "
            "with done and wait(). Mend the provider."
        )
    done: object = given.done
    if not isinstance(done, bool):
        raise CompletionError(
            f"cannot go on with {what}: the completion says done={done!r}; done must be a bool. Mend the provider."
        )
    return given


def outcome_of(given: object, *, what: str) -> ProviderResult:
    """The results that `submit` gave at once, or by a completion, which is waited for."""
    if not isinstance(given, ProviderResult):
        given = require_completion(given, what=what).wait()
    if not isinstance(given, ProviderResult):
        raise ProviderContractError(
            f"cannot go on with {what}: its outcome is {type(given).__name__}. It is a ProviderResult. Mend it."
        )
    return given


@final
@dataclass(frozen=True, slots=True)
class PreparedTransfer:
    """A transfer that is ready: `submit()` begins it and gives a ProviderCompletion whose outcome is None.

    >>> from strideweave.carriers.extension import PreparedTransfer
    >>> PreparedTransfer(submit=1)
    Traceback (most recent call last):
    TypeError: cannot make a PreparedTransfer with 1: submit must be callable. Pass a function.
    """

    submit: Callable[[], ProviderCompletion]
    """Begin; called once at most, on a thread of the framework."""

    def __post_init__(self) -> None:
        require_callable(self, "submit")


@final
@dataclass(frozen=True, slots=True)
class PreparedComposite:
    """Work on carriers made of others that is ready: `submit()` gives a ProviderResult, or a ProviderCompletion of one.

    >>> from strideweave.carriers.extension import PreparedComposite
    >>> PreparedComposite(submit=None)
    Traceback (most recent call last):
    TypeError: cannot make a PreparedComposite with None: submit must be callable. Pass a function.
    """

    submit: Callable[[], ProviderResult | ProviderCompletion]
    """Run, or begin; called once at most."""

    def __post_init__(self) -> None:
        require_callable(self, "submit")


def require_callable(record: object, name: str) -> None:
    """Nothing, when that field is a function."""
    value = getattr(record, name)
    if not callable(value):
        raise TypeError(
            f"cannot make a {type(record).__name__} with {value!r}: {name} must be callable. Pass a function."
        )


def require_text(value: object, what: str) -> None:
    """Nothing, when it is a str with something in it."""
    if not isinstance(value, str):
        raise TypeError(f"cannot take {value!r} as {what}: it must be a str. Pass one.")
    if not value.strip():
        raise ValueError(f"cannot take {value!r} as {what}: it must not be empty. Say something.")


def once(values: Iterable[Any], what: str) -> tuple[Any, ...]:
    """The values, read once. Errors: TypeError for what is not iterable."""
    if not isinstance(values, Iterable):
        raise TypeError(f"cannot take {values!r} as {what}: it must be iterable. Pass a tuple.")
    return tuple(values)
