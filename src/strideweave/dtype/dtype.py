"""The dtypes that storage can hold, one descriptor each, and the categories that they are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Self, final

import torch


class _Descriptor:
    """What the one object of a name has, whether elements are of it or it is only a category of dtypes."""

    __slots__ = ()

    name: str
    supertype: DTypeCategory | None

    def supertypes(self) -> tuple[DTypeCategory, ...]:
        """Every category that this is of, the nearest first; `Any` is the last of them, and of none itself.

        >>> from strideweave.dtype import DType
        >>> DType.Int8.supertypes(), DType.Bool.supertypes(), DType.Any.supertypes()
        ((DType.Integer, DType.Any), (DType.Any,), ())
        """
        above = self.supertype
        return () if above is None else (above, *above.supertypes())

    def is_subtype_of(self, other: StorageDType | DTypeCategory) -> bool:
        """Whether `other` is this one, or a category that it is of. Errors: TypeError for what is no DType.

        >>> from strideweave.dtype import DType
        >>> DType.E4M3.is_subtype_of(DType.Floating), DType.Floating.is_subtype_of(DType.E4M3)
        (True, False)
        """
        if not isinstance(other, _Descriptor):
            raise TypeError(
                f"cannot compare {self!r} with {other!r}: dtype must be a DType. Pass one such as DType.Floating."
            )
        return other is self or other in self.supertypes()

    def is_category(self) -> bool:
        """Whether this is a category, and so the dtype of no storage."""
        return isinstance(self, DTypeCategory)

    def is_simple(self) -> bool:
        """Whether an element is one number of so many bits: all but categories are."""
        return not self.is_category()

    def is_compound(self) -> bool:
        """Whether an element is made of others, as in block-scaled formats: none is, as these have no storage here."""
        return False

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return _described, (self.name,)

    def __repr__(self) -> str:
        return f"DType.{self.name}"


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DTypeCategory(_Descriptor):
    """A kind of dtypes, for asking what a dtype is. No storage is of it; there is one of each: compare with `is`.

    >>> from strideweave.dtype import DType
    >>> DType.BFloat16.supertype, DType.Floating.supertype, DType.Floating.is_category()
    (DType.Floating, DType.Any, True)
    """

    name: str
    """The name in `DType`, as in `DType.Floating`."""
    supertype: DTypeCategory | None = None
    """The category that this one is of; None for `Any`."""


_ANY = DTypeCategory("Any")
_FLOATING = DTypeCategory("Floating", _ANY)
_INTEGER = DTypeCategory("Integer", _ANY)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class StorageDType(_Descriptor):
    """What one element of storage is. There is one descriptor per dtype: compare with `is`.

    >>> from strideweave.dtype import DType, StorageDType
    >>> isinstance(DType.Int16, StorageDType), DType.Int16.itemsize, DType.Int16.is_floating
    (True, 2, False)
    """

    name: str
    """The name in `DType`, as in `DType.Float32`."""
    bits: int
    """Bits that one element takes in storage; a Bool takes 8."""
    torch_dtype: torch.dtype
    """The torch dtype of the same elements."""
    safetensors_name: str
    """The name in the header of a safetensors file."""
    is_floating: bool
    """Whether elements are floating point, and so differentiable."""
    supertype: DTypeCategory
    """The nearest category: `Floating`, `Integer`, or `Any` for Bool."""

    @property
    def itemsize(self) -> int:
        """Bytes that one element takes."""
        return self.bits // 8


def _floating(name: str, bits: int, torch_dtype: torch.dtype, safetensors_name: str) -> StorageDType:
    return StorageDType(
        name=name,
        bits=bits,
        torch_dtype=torch_dtype,
        safetensors_name=safetensors_name,
        is_floating=True,
        supertype=_FLOATING,
    )


def _whole(name: str, torch_dtype: torch.dtype, safetensors_name: str, *, bits: int) -> StorageDType:
    return StorageDType(
        name=name,
        bits=bits,
        torch_dtype=torch_dtype,
        safetensors_name=safetensors_name,
        is_floating=False,
        supertype=_ANY if torch_dtype is torch.bool else _INTEGER,
    )


class _Namespace(type):
    """A class whose attributes stay as they are."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot set {name!r} of DType: the namespace is immutable. Use the dtypes it has.")

    def __delattr__(cls, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name!r} of DType: the namespace is immutable. Leave it.")

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(
            "cannot make a DType: it is a namespace, not a class of values. Use DType.Float32 or from_name."
        )


class DType(metaclass=_Namespace):
    """The storage dtypes and the categories that they are of, one descriptor each, kept by copy and pickle.

    >>> from strideweave.dtype import DType
    >>> DType.BFloat16.itemsize, DType.from_name("BFloat16") is DType.BFloat16
    (2, True)
    >>> [d.name for d in DType.registered() if d.is_subtype_of(DType.Integer)]
    ['Int64', 'Int32', 'Int16', 'Int8', 'UInt8']
    """

    Any: ClassVar[DTypeCategory] = _ANY
    Floating: ClassVar[DTypeCategory] = _FLOATING
    Integer: ClassVar[DTypeCategory] = _INTEGER
    Float64: ClassVar[StorageDType] = _floating("Float64", 64, torch.float64, "F64")
    Float32: ClassVar[StorageDType] = _floating("Float32", 32, torch.float32, "F32")
    BFloat16: ClassVar[StorageDType] = _floating("BFloat16", 16, torch.bfloat16, "BF16")
    Float16: ClassVar[StorageDType] = _floating("Float16", 16, torch.float16, "F16")
    E4M3: ClassVar[StorageDType] = _floating("E4M3", 8, torch.float8_e4m3fn, "F8_E4M3")
    E5M2: ClassVar[StorageDType] = _floating("E5M2", 8, torch.float8_e5m2, "F8_E5M2")
    Int64: ClassVar[StorageDType] = _whole("Int64", torch.int64, "I64", bits=64)
    Int32: ClassVar[StorageDType] = _whole("Int32", torch.int32, "I32", bits=32)
    Int16: ClassVar[StorageDType] = _whole("Int16", torch.int16, "I16", bits=16)
    Int8: ClassVar[StorageDType] = _whole("Int8", torch.int8, "I8", bits=8)
    UInt8: ClassVar[StorageDType] = _whole("UInt8", torch.uint8, "U8", bits=8)
    Bool: ClassVar[StorageDType] = _whole("Bool", torch.bool, "BOOL", bits=8)

    @staticmethod
    def registered() -> tuple[StorageDType, ...]:
        """Every storage dtype, in the order in which they are declared; no category.

        >>> from strideweave.dtype import DType
        >>> DType.registered()[:2]
        (DType.Float64, DType.Float32)
        """
        return _REGISTERED

    @staticmethod
    def from_name(name: str) -> StorageDType:
        """The storage dtype of this name. Errors: TypeError for what is no str; LookupError for any other name.

        >>> from strideweave.dtype import DType
        >>> DType.from_name("Int8")
        DType.Int8
        """
        if not isinstance(name, str):
            raise TypeError(f"cannot find dtype {name!r}: a name is text. Pass a str, such as 'Float32'.")
        return _by_name(name)

    @staticmethod
    def from_safetensors(name: str) -> StorageDType:
        """The dtype that a safetensors header calls so. Errors: LookupError for one that has no storage here.

        >>> from strideweave.dtype import DType
        >>> DType.from_safetensors("BF16")
        DType.BFloat16
        """
        for known in _REGISTERED:
            if known.safetensors_name == name:
                return known
        raise LookupError(f"cannot find the dtype of {name!r}: it has no storage here. {_choose()}")

    @staticmethod
    def from_torch(dtype: torch.dtype) -> StorageDType:
        """The dtype of the same elements.

        Errors: TypeError for what is no torch dtype; ValueError for one that has no storage here.

        >>> import torch
        >>> from strideweave.dtype import DType
        >>> DType.from_torch(torch.bfloat16)
        DType.BFloat16
        """
        if not isinstance(dtype, torch.dtype):
            raise TypeError(
                f"cannot find the dtype of {dtype!r}: it is no torch dtype. Pass one, such as torch.float32."
            )
        for known in _REGISTERED:
            if known.torch_dtype == dtype:
                return known
        raise ValueError(f"cannot find the dtype of {dtype}: it has no storage here. {_choose()}")


_REGISTERED: tuple[StorageDType, ...] = tuple(v for v in vars(DType).values() if isinstance(v, StorageDType))


def _by_name(name: str) -> StorageDType:
    for known in _REGISTERED:
        if known.name == name:
            return known
    raise LookupError(f"cannot find dtype {name!r}: there is none of that name. {_choose()}")


def _described(name: str) -> StorageDType | DTypeCategory:
    """The descriptor that was pickled by this name."""
    return next((c for c in (_ANY, _FLOATING, _INTEGER) if c.name == name), None) or _by_name(name)


def _choose() -> str:
    return f"Use one of {', '.join(known.name for known in _REGISTERED)}."
