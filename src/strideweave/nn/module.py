"""Module: parameters and other modules as attributes, found by looking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from strideweave.nn.parameter import Parameter
from strideweave.tensor.copying import overwrite, values_of
from strideweave.tensor.tensor import Tensor


class Module(ABC):
    """Something with parameters and a `forward`; calling it runs that.

    Parameters and modules are found in the attributes, also inside lists, tuples and dicts.

    >>> import strideweave as sw
    >>> class Scale(sw.nn.Module):
    ...     def __init__(self):
    ...         self.factor = sw.Parameter(sw.ones(1))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> scale = Scale()
    >>> [name for name, _ in scale.named_parameters()], sw.to_list(scale(sw.tensor([2.0, 3.0])))
    (['factor'], [2.0, 3.0])
    """

    @abstractmethod
    def forward(self, *inputs: Any) -> Any:
        """What the module makes of its inputs."""

    def __call__(self, *inputs: Any) -> Any:
        """What `forward` makes of the inputs."""
        return self.forward(*inputs)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under the path of attributes that leads to it, in the order of the attributes."""
        seen: set[int] = set()
        for name, parameter in _found(vars(self).items()):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter once."""
        return (parameter for _, parameter in self.named_parameters())

    def zero_grad(self) -> None:
        """No parameter has a gradient now."""
        for parameter in self.parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Every parameter by name, detached, over the storage that the module uses."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Every parameter has the values that `state` gives for its name.

        Errors: KeyError for missing or unknown names, ValueError for another shape or dtype, before anything changes.
        """
        own = dict(self.named_parameters())
        if own.keys() != state.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise KeyError(
                f"cannot load the state of {type(self).__name__}: missing {missing}, unknown {unknown}. Both have the "
                "same names. Load the state of such a module."
            )
        for name, parameter in own.items():
            given = state[name]
            if given.shape != parameter.shape or given.dtype() is not parameter.dtype():
                raise ValueError(
                    f"cannot load {name!r}: it is {parameter.dtype().name} {parameter.shape} and the state has "
                    f"{given.dtype().name} {given.shape}. Both are alike. Load the state of such a module."
                )
        for name, parameter in own.items():
            overwrite(parameter, values_of(state[name]))

    def __repr__(self) -> str:
        parts = [f"{name}: {parameter.dtype().name} {parameter.shape}" for name, parameter in self.named_parameters()]
        return f"<{type(self).__name__}{': ' if parts else ''}{', '.join(parts)}>"


def _found(items: Iterable[tuple[Any, Any]], prefix: str = "") -> Iterator[tuple[str, Parameter]]:
    for key, value in items:
        name = f"{prefix}{key}"
        if isinstance(value, Parameter):
            yield name, value
        elif isinstance(value, Module):
            yield from _found(vars(value).items(), f"{name}.")
        elif isinstance(value, list | tuple):
            yield from _found(enumerate(value), f"{name}.")
        elif isinstance(value, dict):
            yield from _found(value.items(), f"{name}.")
