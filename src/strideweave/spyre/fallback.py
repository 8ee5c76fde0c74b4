"""Operations that have no kernel on the card: their tensors go to the host, the CPU's kernel runs, results go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from strideweave.spyre.copies import image, read, to_card, write, write_image
from strideweave.spyre.kernels import CPU_KEYS, DEVICE_NAME, aten, implement, untraced
from strideweave.spyre.storage import is_dense, record_of
from strideweave.spyre.substitutes import SUBSTITUTES

_HOST_OPERANDS: Final = (
    "index",
    "_index_put",
    "index_put",
    "_unsafe_index",
    "_unsafe_masked_index",
    "_pack_padded_sequence",
)
"""Operations whose operands may be on the host, as on every device of torch."""

_WRITES_UNSAID: Final = {"aten::native_batch_norm": ("running_mean", "running_var")}
"""Arguments that an operation writes although its schema does not say so."""

_CPU: Final = torch.device("cpu")


class _Plan:
    """What is known of an operation by its schema."""

    __slots__ = ("by_name", "by_position", "has_writes", "is_view", "name", "packet", "returns_operand", "takes_host")

    def __init__(self, operation: torch._ops.OpOverload) -> None:
        schema = operation._schema
        self.name = schema.name
        returns = schema.returns
        self.is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.returns_operand = any(r.alias_info is not None for r in returns)
        unsaid = _WRITES_UNSAID.get(schema.name, ())
        self.by_position = tuple(_Argument(argument, unsaid) for argument in schema.arguments)
        self.by_name = {argument.name: argument for argument in self.by_position}
        self.has_writes = any(argument.is_written for argument in self.by_position)
        self.takes_host = schema.name.removeprefix("aten::").startswith(_HOST_OPERANDS)
        self.packet = operation.overloadpacket


class _Argument:
    """What is known of an argument by the schema."""

    __slots__ = ("is_out", "is_tensor", "is_written", "name")

    def __init__(self, argument: Any, unsaid: Sequence[str]) -> None:
        self.name = argument.name
        declared = argument.alias_info is not None and argument.alias_info.is_write
        self.is_written = declared or argument.name in unsaid
        self.is_out = argument.is_out
        self.is_tensor = argument.type.kind() == "TensorType"


_PLANS: Final[dict[torch._ops.OpOverload, _Plan]] = {}


@untraced
def run_on_host(operation: torch._ops.OpOverload, *arguments: Any, **named: Any) -> Any:
    """The kernel of every operation that the card has none for.

    Tensors that an operation writes (in place, or `out=`) get their new values; operands that share a storage with one
    that is written share it on the host too, so that overlaps mean what they mean on the CPU.
    """
    plan = _PLANS.get(operation)
    if plan is None:
        plan = _PLANS[operation] = _Plan(operation)
    if plan.is_view:
        return operation.redispatch(CPU_KEYS, *arguments, **named)
    call = _HostCall(operation, plan)
    if plan.has_writes:
        call.find_shared(arguments)
        call.find_shared(tuple(named.values()))
    host = [call.to_host(value, argument) for value, argument in zip(arguments, plan.by_position, strict=False)]
    host_named = {name: call.to_host(value, plan.by_name[name]) for name, value in named.items()} if named else named
    results = call.compute(host, host_named)
    if call.written:
        call.write_back()
    return call.to_card(results)


class _HostCall:
    """One operation on the host: which host tensor stands for which tensor of the card."""

    __slots__ = (
        "_has_number",
        "_images",
        "_operation",
        "_plan",
        "_seen",
        "_shared",
        "_stands_for",
        "_stray",
        "written",
    )

    def __init__(self, operation: torch._ops.OpOverload, plan: _Plan) -> None:
        self._operation = operation
        self._plan = plan
        self._has_number = False
        self._stray: torch.Tensor | None = None
        self._seen: dict[int, torch.Tensor] = {}
        self._shared: set[int] = set()
        self._images: dict[int, torch.Tensor] = {}
        self.written: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._stands_for: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def find_shared(self, values: Sequence[Any]) -> None:
        """Finds the storages that several operands have."""
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.device.type == DEVICE_NAME:
                    pointer = value.untyped_storage().data_ptr()
                    if self._seen.setdefault(pointer, value) is not value:
                        self._shared.add(pointer)
            elif isinstance(value, list | tuple):
                self.find_shared(value)

    def to_host(self, value: Any, argument: _Argument) -> Any:
        """What the CPU's kernel gets for an argument."""
        if isinstance(value, torch.Tensor):
            return self._tensor_to_host(value, argument)
        if value is None:
            return value
        if isinstance(value, list | tuple):
            if any(isinstance(part, torch.Tensor) for part in value):
                return [part if part is None else self.to_host(part, argument) for part in value]
            return value
        if argument.is_tensor:
            self._has_number = True
        elif isinstance(value, torch.device) and value.type == DEVICE_NAME:
            return _CPU
        return value

    def _tensor_to_host(self, value: torch.Tensor, argument: _Argument) -> torch.Tensor:
        if value.device.type != DEVICE_NAME:
            if value.dim() and value.device.type == "cpu":
                self._stray = value
            return value
        before = self._stands_for.get(id(value))
        if before is not None:
            host = before[0]
        else:
            host = self._copy(value, argument)
            if value.is_conj():
                host = host.conj()
            if value.is_neg():
                host = torch._neg_view(host)
            self._stands_for[id(value)] = self._stands_for[id(host)] = (host, value)
        if argument.is_written:
            self.written.append((value, host))
        return host

    def _copy(self, value: torch.Tensor, argument: _Argument) -> torch.Tensor:
        if self._shared:
            pointer = value.untyped_storage().data_ptr()
            if pointer in self._shared:
                whole = self._images.get(pointer)
                if whole is None:
                    whole = self._images[pointer] = image(record_of(value))
                return whole.view(value.dtype).as_strided(value.size(), value.stride(), value.storage_offset())
        if argument.is_out and is_dense(value.size(), value.stride()):
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
        return read(value)

    def _require_one_device(self) -> None:
        if self._stray is not None and self._stands_for and not self._plan.takes_host:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE_NAME}:0 and "
                f"cpu! (in {self._operation}, an operand of size {tuple(self._stray.shape)} is on the CPU. Move it "
                f"with .to('{DEVICE_NAME}').)"
            )

    def compute(self, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Runs the CPU's kernel."""
        if self._stray is not None:
            self._require_one_device()
        substitute = SUBSTITUTES.get(self._plan.name)
        if substitute is not None:
            return substitute(self._operation, *arguments, **named)
        if self._has_number:  # a number where the schema has a tensor: the overload for numbers is among the others
            return self._plan.packet(*arguments, **named)
        return self._operation(*arguments, **named)

    def write_back(self) -> None:
        """The tensors that the operation writes have their new values on the card."""
        for value, host in self.written:
            if value.size() != host.size():
                value.resize_(host.size())
                if value.stride() != host.stride() and is_dense(host.size(), host.stride()):
                    value.as_strided_(host.size(), host.stride())
            host = _as_in_memory(host, value)
            whole = self._images.get(value.untyped_storage().data_ptr()) if self._images else None
            if whole is not None and whole.untyped_storage().data_ptr() == host.untyped_storage().data_ptr():
                write_image(record_of(value), whole)
            else:
                write(value, host)

    def to_card(self, result: Any) -> Any:
        """What the operation returns: a tensor that was given, or a new one of the card."""
        if isinstance(result, torch.Tensor):
            given = self._stands_for.get(id(result))
            if given is not None and given[0] is result and self._plan.returns_operand:
                return given[1]
            return (
                to_card(result)
                if result.device.type == "cpu" and result.layout is torch.strided
                else self._refuse(result)
            )
        if isinstance(result, tuple):
            return tuple(self.to_card(part) for part in result)
        if isinstance(result, list):
            return [self.to_card(part) for part in result]
        return result

    def _refuse(self, result: torch.Tensor) -> Any:
        raise RuntimeError(
            f"cannot run {self._operation} on {DEVICE_NAME}: its result is a {result.layout} tensor on "
            f"{result.device}, and the card holds strided tensors only. Run it on the CPU."
        )


def _as_in_memory(host: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The elements that `value` has in memory when it equals `host`; `host` itself where both have the same bits."""
    if host.is_conj() is not value.is_conj() or host.is_neg() is not value.is_neg():
        host = host.resolve_conj().resolve_neg()
        if value.is_conj():
            host = host.conj_physical()
        return host.neg() if value.is_neg() else host
    if host.is_conj():
        host = host.conj()
    return torch._neg_view(host) if host.is_neg() else host


_BY_NAME: Final = (
    "convolution_overrideable", "convolution_backward_overrideable", "native_layer_norm", "native_group_norm", "addr",
    "addr_", "addr.out", "all.dims", "any.dims",
    "_conj_physical", "conj_physical_",
)  # fmt: skip
"""Operations for which torch has kernels for all devices, that only refuse or round otherwise than the CPU's own."""


_WITHOUT_OUT: Final = (
    *(f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Scalar", "Tensor")),
    "mm", "bmm", "addmm", "baddbmm", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    "sum.dim_IntList", "mean.dim", "amax", "amin", "argmax", "argmin", "max.dim", "min.dim", "cumsum", "any", "any.dim",
    "all", "all.dim", "cat", "gather", "scatter.src", "scatter.value", "scatter_add", "index_add", "tril", "triu",
    "topk", "sort.stable", "floor", "ceil", "round", "trunc", "sign", "pow.Tensor_Scalar", "pow.Tensor_Tensor",
    "remainder.Tensor", "fmod.Tensor", "bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_not", "nll_loss_forward",
    "nll_loss_backward", "isin.Tensor_Tensor",
)  # fmt: skip
"""Operations that torch would run by way of their `out=` form: in one step they take half the time."""


def register(library: torch.library.Library, key: str) -> None:
    """The dispatcher calls this module for `key`: also where torch has kernels for all devices that only refuse."""
    implement(library, "_local_scalar_dense", item, key)
    for name in (*_BY_NAME, *_WITHOUT_OUT):

        def kernel(*arguments: Any, _name: str = name, **named: Any) -> Any:
            return run_on_host(aten(_name), *arguments, **named)

        implement(library, name, untraced(kernel), key)


@untraced
def item(tensor: torch.Tensor) -> Any:
    """`tensor.item()` of one element."""
    return read(tensor).item()
