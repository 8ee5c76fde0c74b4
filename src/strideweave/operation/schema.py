"""What an operation takes: operands of three kinds, and options by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, final


@final
class _Mark:
    """A value with an identity and a name, nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


REQUIRED: Final = _Mark("REQUIRED")
"""The default of an option that has none."""
NON_DIFFERENTIABLE: Final = _Mark("NON_DIFFERENTIABLE")
"""The `vjp` of an operation that passes no gradient."""


class OperandKind(Enum):
    """What an operand is.

    >>> from strideweave.operation import OperandKind
    >>> [kind.value for kind in OperandKind]
    ['tensor', 'weak_scalar', 'structural']
    """

    TENSOR = "tensor"
    """A Tensor."""
    WEAK_SCALAR = "weak_scalar"
    """A Python int, float or bool, which takes the dtype of the tensors beside it."""
    STRUCTURAL = "structural"
    """Any hashable value that says how, never how much: a shape, an axis, a description."""


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand: its name, the kind or kinds that it may have, and whether gradients reach it.

    >>> from strideweave.operation import OperandKind, OperandSpec
    >>> OperandSpec("x", OperandKind.TENSOR, differentiable=True).kinds
    (<OperandKind.TENSOR: 'tensor'>,)
    """

    name: str
    """The name in messages and in calls by keyword."""
    kind: OperandKind | tuple[OperandKind, ...]
    """What it may be."""
    differentiable: bool = False
    """Whether a gradient reaches it."""
    variadic: bool = field(default=False, kw_only=True)
    """Whether it stands for one or more operands of this kind, up to the last one of the call."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"cannot name an operand {self.name!r}: a name is an identifier. Choose one.")
        if not self.kinds or any(not isinstance(kind, OperandKind) for kind in self.kinds):
            raise TypeError(f"cannot take {self.kind!r} as the kind of {self.name!r}: it is an OperandKind. Pass one.")
        if self.differentiable and OperandKind.TENSOR not in self.kinds:
            raise ValueError(f"cannot differentiate operand {self.name!r}: only tensors have gradients. Drop the flag.")

    @property
    def kinds(self) -> tuple[OperandKind, ...]:
        """The kinds that it may have."""
        return self.kind if isinstance(self.kind, tuple) else (self.kind,)


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One keyword option: its name, and its default unless it is REQUIRED.

    >>> from strideweave.operation import REQUIRED, OptionSpec
    >>> OptionSpec("axis").default is REQUIRED, OptionSpec("eps", 1e-5).default
    (True, 1e-05)
    """

    name: str
    """The keyword."""
    default: Any = REQUIRED
    """What it is when it is not given."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"cannot name an option {self.name!r}: a name is an identifier. Choose one.")


@dataclass(frozen=True, slots=True)
class OperationSchema:
    """The operands in order, and the options; iterables are read once.

    Errors: TypeError for anything but specs; ValueError for a name that occurs twice, and for a variadic operand with
    another one behind it.

    >>> from strideweave.operation import OperandKind, OperandSpec, OperationSchema
    >>> schema = OperationSchema([OperandSpec("tensors", OperandKind.TENSOR, variadic=True)])
    >>> [spec.name for spec in schema.operands_for(3)]
    ['tensors', 'tensors', 'tensors']
    """

    operands: tuple[OperandSpec, ...]
    """The operands, in order."""
    options: tuple[OptionSpec, ...] = ()
    """The keyword options."""

    def __init__(self, operands: Iterable[OperandSpec], options: Iterable[OptionSpec] = ()) -> None:
        taken, named = tuple(operands), tuple(options)
        for spec in taken:
            if not isinstance(spec, OperandSpec):
                raise TypeError(f"cannot take {spec!r} as an operand: a schema is made of OperandSpecs. Pass one.")
        for option in named:
            if not isinstance(option, OptionSpec):
                raise TypeError(f"cannot take {option!r} as an option: a schema is made of OptionSpecs. Pass one.")
        names = [spec.name for spec in taken] + [option.name for option in named]
        if len(set(names)) != len(names):
            raise ValueError(f"cannot make a schema of {names}: a name occurs twice. Rename one.")
        for spec in taken[:-1]:
            if spec.variadic:
                raise ValueError(
                    f"cannot make a schema of {names}: {spec.name!r} is variadic and {taken[-1].name!r} follows it. "
                    "Only the last operand takes all that are left. Move it to the end."
                )
        object.__setattr__(self, "operands", taken)
        object.__setattr__(self, "options", named)

    @property
    def is_variadic(self) -> bool:
        """Whether the last operand stands for one or more."""
        return bool(self.operands) and self.operands[-1].variadic

    def operands_for(self, count: int) -> tuple[OperandSpec, ...]:
        """One spec for each of `count` operands: a variadic one is repeated for all that are left."""
        missing = count - len(self.operands)
        return self.operands + self.operands[-1:] * missing if missing > 0 and self.is_variadic else self.operands
