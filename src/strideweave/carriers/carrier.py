"""What every carrier is: a flat, typed extent of slots with an owner, a version and an end."""

from __future__ import annotations

import itertools
import threading
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, SupportsIndex, TypeVar, cast

import torch

from strideweave.carriers import definition, ports, provided
from strideweave.carriers.definition import CarrierFacet, Installed, StorageProvider
from strideweave.carriers.slots import (
    Run,
    Scalar,
    byte_view,
    flat_values,
    require_size,
    rounded,
    slot_value,
    validate_storage_dtype,
)
from strideweave.dtype import DType, DTypeCategory, StorageDType

__all__ = [
    "RELEASE",
    "TAKE_OVER",
    "Carrier",
    "Run",
    "Scalar",
    "byte_view",
    "require_size",
    "rounded",
    "slot_value",
    "validate_storage_dtype",
]

F = TypeVar("F", bound=CarrierFacet)

RELEASE, TAKE_OVER = "release", "take over"
"""What a shield is asked about besides writes, of which the words vary."""

_owner_tokens = itertools.count(1)
_seen = definition._seen
_NOT_SEEN = object()
_HOOKS = ("size", "_read_runs", "_write_runs", "_allocate", "_free", "allocate_like")
"""What a class without a definition overrides, all of it."""


class Carrier(ABC):  # noqa: B024  # subclasses have abstract methods of their own
    """A flat extent of slots of one dtype: where the values of a Tensor live.

    A class says in one of two ways how it stores. It has a definition (`register_carrier_definition`): then nothing is
    overridden, and `cls(slots, dtype=..., mutable=True)` makes a carrier. Or it overrides the hooks that read and write
    *runs* (consecutive slots): `size`, `_read_runs`, `_write_runs`, `_allocate`, `_free`, `allocate_like`, with a
    constructor of its own. Everything else, ranges, ownership, versions and release, is decided here once.

    Errors: TypeError for a class that does neither, or a dtype that a definition does not support; IndexError for a
    slot outside; RuntimeError for a released, immutable or owned carrier.
    """

    accepted_dtypes: ClassVar[tuple[StorageDType, ...]] = DType.registered()

    _accessor: tuple[int, int] | None = None
    """The thread whose code acts as the owner, and how deep its scopes nest."""
    _shields: tuple[Callable[[str], None], ...] = ()
    """Who must agree before the values change: running operations, so almost always nobody."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__[1:]:
            if definition.qualified(base) in definition.CLOSED:
                raise TypeError(
                    f"cannot subclass {base.__name__}: shipped carrier classes are closed. Subclass Carrier."
                )

    def __init__(self, slots: int = 0, *, dtype: StorageDType, mutable: bool = True) -> None:
        found: Any = _seen.get(type(self), _NOT_SEEN)
        if found is _NOT_SEEN:
            found = self._observed()
        if found is None:
            if slots != 0:
                raise TypeError(
                    f"cannot make a {type(self).__name__} of {slots!r} slots: definition-free Carrier construction "
                    "takes none, since a class without a CarrierDefinition stores by hooks of its own. Register a "
                    "definition for exactly this class."
                )
            validate_storage_dtype(dtype, carrier=type(self).__name__, accepted=self.accepted_dtypes)
        self._dtype = dtype
        self._mutable = bool(mutable)
        self._released = False
        self._version = 0
        self._owner: int | None = None
        self._owner_lock = threading.Lock()  # guards _owner, _accessor and _shields
        if found is not None:
            self._establish(found, slots)

    # -- storage: from the definition, or overridden -----------------------------------------------------------

    def _observed(self) -> Installed | None:
        """How exactly this class stores, settled for good."""
        cls = type(self)
        missing = [name for name in _HOOKS if getattr(cls, name) is getattr(Carrier, name)]
        if missing and not definition.is_defined(cls):
            raise TypeError(
                f"cannot make a {cls.__name__}: definition-free Carrier construction needs {', '.join(missing)} "
                "overridden. A definition is never inherited. Register one for exactly this class, or override these."
            )
        return definition.observe(cls)

    def _establish(self, found: Installed, slots: int) -> None:
        """The storage of a fresh carrier of a defined class."""
        name = type(self).__name__
        if not isinstance(self._dtype, StorageDType):
            raise TypeError(
                f"cannot make a {name} of {self._dtype!r}: dtype must be a DType. Pass one such as DType.BFloat16."
            )
        require_size(slots, what=f"a {name}")
        if found.is_dependent:
            if slots:
                raise TypeError(
                    f"cannot make a {name} of {slots} slots: it is made of other carriers, which have them. Pass these."
                )
            return
        if not self._supports_storage_dtype(self._dtype):
            raise TypeError(
                f"cannot make a {name}: it does not support storage dtype {self._dtype.name}. Its StorageProvider says "
                "which it stores. Choose another dtype."
            )
        self._allocate(slots)

    def _provider(self) -> StorageProvider:
        found = definition.installed(type(self))
        if found is None:
            raise TypeError(
                f"cannot use the storage of {type(self).__name__}: definition-free Carrier classes store by hooks of "
                f"their own ({', '.join(_HOOKS)}). Override them, or register a CarrierDefinition."
            )
        return found.storage

    def size(self) -> int:
        """The number of slots; 0 after release, and before an empty carrier is allocated."""
        return 0 if self._released else provided.physical_size(self._provider(), self)

    def _read_runs(self, runs: Sequence[Run]) -> int:
        """Fill each contiguous 1-d tensor from the slots that begin at its start; the bytes read."""
        return provided.read_runs(self._provider(), self, runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        """Put each contiguous 1-d tensor at the slots that begin at its start; the bytes written."""
        return provided.write_runs(self._provider(), self, runs)

    def _allocate(self, size: int) -> None:
        """Give an empty carrier `size` slots of unspecified value."""
        provided.allocate(self._provider(), self, size)

    def _free(self) -> None:
        """Let go of the storage."""
        provided.release(self._provider(), self)

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        """A fresh carrier of this class with `size` slots, zero unless `empty`."""
        self._provider()
        require_size(size, what=f"a {type(self).__name__}")
        return type(self)(size, dtype=dtype or self._dtype, mutable=mutable)

    def _flat(self) -> torch.Tensor:
        """The whole extent as one 1-d torch tensor that shares memory; only for carriers in torch storage."""
        raise BufferError(
            f"cannot see {self!r} as memory: its values are not in addressable memory. Only carriers in torch storage "
            "(CPU) can be viewed. Call materialize() on the tensor for a copy."
        )

    def _is_in_memory(self) -> bool:
        """Whether `_flat` works."""
        return False

    def _allows_views(self) -> bool:
        """Whether a Tensor over a part of the slots makes sense; a tiled carrier says no."""
        return True

    def _takes_beside(self, other: Carrier) -> bool:
        """Whether an operation dispatched on this class takes operands on that carrier of another class, too."""
        return False

    def _summed(self, a: Any, b: Any) -> Any:
        """The sum of two cotangents of which the first is on this carrier; None for the ordinary addition."""
        return None

    def _as_gradient(self, cotangent: Any) -> Any:
        """The `grad` that a cotangent on this carrier becomes; None for a fresh copy."""
        return None

    def _html_of_values(self) -> str | None:
        """HTML of where the values are, for a notebook, without a look at one; None when there is nothing to draw."""
        return None

    def _content_token(self) -> object:
        """What changes whenever a value changes: how saved values are known to be as they were."""
        return self._version

    def _is_dependent(self) -> bool:
        """Whether the carrier is made of other carriers, and so cannot be a part of one."""
        return False

    # -- facts -------------------------------------------------------------------------------------------------

    def dtype(self) -> StorageDType:
        """The dtype of every slot; known after release too."""
        return self._dtype

    @property
    def version(self) -> int:
        """How many times the visible values have changed; residency never changes it."""
        return self._version

    @property
    def nbytes(self) -> int:
        """The bytes of all slots."""
        return self.size() * self._dtype.itemsize

    def is_mutable(self) -> bool:
        """Whether the caller may write: nobody but the owner while the carrier is owned, nobody after release."""
        return self._mutable and not self._released and (self._owner is None or self._has_owner_access())

    def is_owned(self) -> bool:
        """Whether a larger structure or a pending request has taken the carrier over."""
        return self._owner is not None

    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._released

    def supports_storage_dtype(self, dtype: StorageDType) -> bool:
        """Whether this class can store `dtype`, which a category of dtypes never is. Errors: TypeError for no DType."""
        if isinstance(dtype, DTypeCategory):
            return False
        if not isinstance(dtype, StorageDType):
            raise TypeError(
                f"cannot ask {type(self).__name__} about {dtype!r}: storage dtype must be a DType. "
                "Pass one such as DType.BFloat16."
            )
        return self._supports_storage_dtype(dtype)

    def _supports_storage_dtype(self, dtype: StorageDType) -> bool:
        found = definition.installed(type(self))
        if found is None:
            return dtype in self.accepted_dtypes
        return provided.supports_dtype(found.storage, self, dtype)

    def dlpack_info(self) -> tuple[int, int, int]:
        """Where slot 0 is, as DLPack counts it: address, kind of device, device. Errors: BufferError without memory."""
        raise BufferError(
            f"cannot export {self!r} by DLPack: its values are not in memory that DLPack knows. Only carriers in torch "
            "storage are exported. Call materialize() on the tensor for a copy."
        )

    # -- what it can do ----------------------------------------------------------------------------------------

    def dispatch_op(self, name: str) -> Any:
        """A fresh Operation of that name for exactly this class: its `forward` runs it.

        Errors: TypeError for no str; NotImplementedError for an unknown name; RuntimeError for a released carrier that
        is made of others.

        >>> import strideweave as sw
        >>> x = sw.tensor([1.0, 2.0])
        >>> sw.to_list(x.carrier.dispatch_op("add").forward(x, x))
        [2.0, 4.0]
        """
        if not isinstance(name, str):
            raise TypeError(f"cannot dispatch {name!r}: the name of an operation must be a str. Pass one like 'add'.")
        if self._released and self._is_dependent():
            raise RuntimeError(f"{type(self).__name__} is released")
        return self._dispatch_op(name)

    def _dispatch_op(self, name: str) -> Any:
        return ports.call("dispatch_op", type(self), name)

    def operation_capabilities(self, name: str | None = None) -> tuple[Any, ...]:
        """The OperationCapability of every plan that runs here, of one operation or of all; after release too.

        >>> import strideweave as sw
        >>> [c.output for c in sw.CPU(1).operation_capabilities("relu")][:2]
        [DType.Float64, DType.Float32]
        """
        capabilities: tuple[Any, ...] = ports.call("capabilities", self, name)
        return capabilities

    def unsupported_plan_reason(self, plan: Any) -> str | None:
        """Why this carrier cannot run an OperationPlan; None when it can. Errors: TypeError for no plan."""
        reason: str | None = ports.call("unsupported_reason", self, plan)
        return reason

    def supports_operation_plan(self, plan: Any) -> bool:
        """Whether this carrier can run an OperationPlan. Errors: TypeError for no plan."""
        return self.unsupported_plan_reason(plan) is None

    def require_operation_plan(self, plan: Any) -> None:
        """Nothing, when this carrier can run the plan. Errors: UnsupportedOperationPlan with the reason."""
        ports.call("require_plan", type(self), plan, self.unsupported_plan_reason(plan))

    def facet(self, kind: type[F]) -> F | None:
        """The facet of exactly this type that the class was defined with; None when there is none.

        Errors: TypeError for what is no CarrierFacet subclass.
        """
        if not (isinstance(kind, type) and issubclass(kind, CarrierFacet) and kind is not CarrierFacet):
            raise TypeError(f"cannot look for facet {kind!r}: it must be a CarrierFacet subclass. Pass a class.")
        found = definition.installed(type(self))
        return None if found is None else cast("F | None", found.facets.get(kind))

    def require_facet(self, kind: type[F]) -> F:
        """The facet of exactly this type. Errors: as `facet`; NotImplementedError when there is none."""
        found = self.facet(kind)
        if found is None:
            raise NotImplementedError(
                f"cannot find facet {kind.__name__} of {type(self).__name__}: its class was not defined with one. "
                "Use a carrier that has it."
            )
        return found

    # -- values ------------------------------------------------------------------------------------------------

    def get_value(self, index: int) -> Scalar:
        """The value of one slot."""
        self._require_live("read")
        slot = self._slot(index)
        found = definition.installed(type(self))
        if found is not None and type(self)._read_runs is Carrier._read_runs:
            return provided.read(found.storage, self, slot)
        one = torch.empty(1, dtype=self._dtype.torch_dtype)
        self._read_runs([(slot, one)])
        value: Scalar = one.item()
        return value

    def set_value(self, index: int, value: Scalar) -> None:
        """Write one slot and advance the version once.

        Errors: TypeError for what is no number; OverflowError, ValueError for one that the dtype does not hold.
        """
        self._require_writable("write")
        slot = self._slot(index)
        number = slot_value(value, self._dtype)
        found = definition.installed(type(self))
        if found is not None and type(self)._write_runs is Carrier._write_runs:
            provided.write(found.storage, self, slot, number)
        else:
            self._write_runs([(slot, torch.tensor([number], dtype=self._dtype.torch_dtype))])
        self._version += 1

    def __getitem__(self, index: int) -> Scalar:
        return self.get_value(index)

    def __setitem__(self, index: int, value: Scalar) -> None:
        self.set_value(index, value)

    def new_like(
        self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType | None = None
    ) -> Carrier:
        """A fresh carrier of this class that holds `values`; None becomes zero."""
        chosen = self._dtype if dtype is None else dtype
        validate_storage_dtype(chosen, carrier=type(self).__name__, accepted=DType.registered())
        flat = flat_values([0 if v is None else v for v in values], chosen)
        fresh = self.allocate_like(flat.numel(), mutable=mutable, dtype=chosen, empty=True)
        if flat.numel():
            fresh._write_runs([(0, flat)])
        return fresh

    # -- the end -----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Let go of the storage; again is harmless. Errors: RuntimeError while the carrier is owned."""
        if self._released:
            return
        for shield in self._shields:
            shield(RELEASE)
        if self._owner is not None and not self._has_owner_access():
            raise RuntimeError(
                f"cannot release {self!r}: it is owned by a larger structure or a pending request. "
                "Release the owner, or wait for the request."
            )
        self._released = True
        self._free()

    # -- ownership ---------------------------------------------------------------------------------------------

    def _claim_ownership(self) -> int:
        with self._owner_lock:
            self._require_live(TAKE_OVER)
            for shield in self._shields:
                shield(TAKE_OVER)
            if self._owner is not None:
                raise RuntimeError(
                    f"cannot take over {self!r}: it is already owned. A carrier has one owner. Pass another carrier."
                )
            self._owner = next(_owner_tokens)
            return self._owner

    def _relinquish_ownership(self, token: int) -> None:
        with self._owner_lock:
            assert self._owner == token, "only the owner gives up ownership"
            self._owner = None
            self._accessor = None

    def _begin_owner_access(self, token: int) -> None:
        """From now on code of this thread acts as the owner: it may write and release. Scopes of one thread nest.

        Errors: RuntimeError for the token of somebody else, and while another thread has such a scope.
        """
        here = threading.get_ident()
        with self._owner_lock:
            self._require_owner(token)
            thread, depth = self._accessor or (here, 0)
            if thread != here:
                raise RuntimeError(
                    f"cannot act as the owner of {self!r}: another thread does. One thread at a time. Wait for it."
                )
            self._accessor = here, depth + 1

    def _end_owner_access(self, token: int) -> None:
        """The scope that began last is over. Errors: RuntimeError for another token, or when this thread has none."""
        with self._owner_lock:
            self._require_owner(token)
            if self._accessor is None or self._accessor[0] != threading.get_ident():
                raise RuntimeError(
                    f"cannot end the owner's access to {self!r}: this thread has none. Begin it in the same thread."
                )
            depth = self._accessor[1] - 1
            self._accessor = (self._accessor[0], depth) if depth else None

    def _has_owner_access(self) -> bool:
        """Whether code of this thread acts as the owner at the moment."""
        accessor = self._accessor
        return accessor is not None and accessor[0] == threading.get_ident()

    def _require_owner(self, token: int) -> None:
        if self._owner is None or self._owner != token:
            raise RuntimeError(
                f"cannot act as the owner of {self!r}: the token is not the owner's. Claim ownership and use its token."
            )

    def _increment_version(self) -> None:
        """The visible values have changed once more."""
        self._version += 1

    # -- guards ------------------------------------------------------------------------------------------------

    def _require_live(self, what: str) -> None:
        if self._released:
            raise RuntimeError(
                f"cannot {what} {type(self).__name__}: carrier is released. A released carrier holds no values. "
                "Make a new one."
            )

    def _require_writable(self, what: str) -> None:
        self._require_live(what)
        for shield in self._shields:
            shield(what)
        if self._owner is not None and not self._has_owner_access():
            raise RuntimeError(
                f"cannot {what} {self!r}: it is owned, so it must not be changed from outside. "
                "Go through its owner, or wait for the pending request."
            )
        if not self._mutable:
            raise RuntimeError(f"cannot {what} {self!r}: Carrier is not mutable. Make a mutable copy.")

    def _slot(self, index: int) -> int:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"cannot use {index!r} as a slot: a slot must be an integer. Pass an int.")
        if not 0 <= index < self.size():
            raise IndexError(
                f"cannot use slot {index} of {type(self).__name__}: it has {self.size()} slots. Carrier index out of "
                "range. Pass an index below the size."
            )
        return index

    # -- copies ------------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return ports.call("reduce_carrier", self, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return ports.call("deepcopy_carrier", self, memo)

    def __repr__(self) -> str:
        state = ", released" if self._released else ", owned" if self._owner is not None else ""
        return f"<{type(self).__name__} of {self.size()} x {self._dtype.name}{state}>"
