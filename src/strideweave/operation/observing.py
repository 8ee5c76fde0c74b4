"""The seam through which a profile sees operations and moves: nothing is paid while nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

active: list[Observer] = []
"""Who looks at the moment; almost always nobody."""


class Observer(Protocol):
    """Sees operations begin and end, and moves complete."""

    def begin(self, name: str, carrier_class: type, implementation: type, operands: Iterable[Any]) -> Any:
        """A token for what begins; None when it is not looked at."""
        ...

    def end(self, token: Any, *, succeeded: bool) -> None:
        """What the token stands for is over."""
        ...

    def completion(self, submitted: Any) -> Any:
        """A token for the end of a move, given that of its submission; on any thread."""
        ...

    def complete(self, token: Any, *, succeeded: bool) -> None:
        """The end of a move is over."""
        ...


class Observation:
    """One thing that is looked at from its beginning to its end, by everybody who looked when it began."""

    __slots__ = ("_tokens",)

    def __init__(self, name: str, carrier_class: type, implementation: type, operands: Iterable[Any]) -> None:
        begun = ((observer, observer.begin(name, carrier_class, implementation, operands)) for observer in list(active))
        self._tokens = [(observer, token) for observer, token in begun if token is not None]

    def end(self, *, succeeded: bool) -> None:
        """It is over."""
        for observer, token in reversed(self._tokens):
            observer.end(token, succeeded=succeeded)

    def completing(self) -> Completion:
        """The end of the move that this submitted begins now."""
        return Completion([(observer, observer.completion(token)) for observer, token in self._tokens])


class Completion:
    """The end of a move, looked at by everybody who saw its submission."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[tuple[Observer, Any]]) -> None:
        self._tokens = tokens

    def end(self, *, succeeded: bool) -> None:
        """It is over."""
        for observer, token in self._tokens:
            observer.complete(token, succeeded=succeeded)


def observe(name: str, carrier_class: type, implementation: type, operands: Iterable[Any], work: Callable[[], T]) -> T:
    """What `work` returns, with everybody who looks told when it begins and ends."""
    observation = Observation(name, carrier_class, implementation, operands)
    succeeded = False
    try:
        result = work()
        succeeded = True
        return result
    finally:
        observation.end(succeeded=succeeded)
