"""Every operation that has no kernel on the card: its tensors go to the host, the CPU's kernel runs, results go back."""

from __future__ import annotations

from typing import Any, Final

import torch

from strideweave.spyre.copies import image, read, to_card, write, write_image
from strideweave.spyre.kernels import CPU_KEYS, DEVICE_NAME, aten, untraced
from strideweave.spyre.storage import is_dense, record_of

_HOST_OPERANDS: Final = ("index", "_index_put", "index_put", "_unsafe_index", "_unsafe_masked_index", "_pack_padded_sequence")
"""Operations whose operands may be on the host, as on every device of torch."""

_CPU: Final = torch.device("cpu")


@untraced
def run_on_host(operation: torch._ops.OpOverload, *arguments: Any, **named: Any) -> Any:
    """The kernel of every operation that the card has none for.

    Tensors that an operation writes (in place, or `out=`) get their new values; operands that share a storage share it
    on the host too, so that overlaps are found as on the CPU.
    """
    if _only_views(operation):
        return operation.redispatch(CPU_KEYS, *arguments, **named)
    call = _HostCall(operation)
    schema = operation._schema.arguments
    positions = len(arguments)
    for value in arguments:
        call.count(value)
    for value in named.values():
        call.count(value)
    host = [call.to_host(value, schema[k]) for k, value in enumerate(arguments)]
    by_name = {a.name: a for a in schema[positions:]} if named else {}
    host_named = {name: call.to_host(value, by_name[name]) for name, value in named.items()}
    results = call.compute(host, host_named)
    call.write_back()
    return call.to_card(results)


def _only_views(operation: torch._ops.OpOverload) -> bool:
    """Whether every result is a view of an operand."""
    found = _VIEWS.get(operation)
    if found is None:
        returns = operation._schema.returns
        found = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        _VIEWS[operation] = found
    return found


_VIEWS: Final[dict[Any, bool]] = {}


class _HostCall:
    """One operation on the host: which host tensor stands for which tensor of the card."""

    __slots__ = ("_has_number", "_images", "_named", "_operation", "_shared", "_stands_for", "_written")

    def __init__(self, operation: torch._ops.OpOverload) -> None:
        self._operation = operation
        self._has_number = False
        self._named: dict[int, int] = {}
        self._shared: set[int] = set()
        self._images: dict[int, torch.Tensor] = {}
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._stands_for: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def count(self, value: Any) -> None:
        """Finds storages that several operands have."""
        if isinstance(value, torch.Tensor):
            if value.device.type == DEVICE_NAME:
                pointer = value.untyped_storage().data_ptr()
                if pointer in self._named and self._named[pointer] != id(value):
                    self._shared.add(pointer)
                self._named[pointer] = id(value)
        elif isinstance(value, list | tuple):
            for part in value:
                self.count(part)

    def to_host(self, value: Any, argument: Any) -> Any:
        """What the CPU's kernel gets for an argument."""
        if isinstance(value, torch.Tensor):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            return self._tensor_to_host(value, is_written, argument.is_out)
        if isinstance(value, list | tuple) and value and any(isinstance(part, torch.Tensor) for part in value):
            return [part if part is None else self.to_host(part, argument) for part in value]
        if isinstance(value, torch.device) and value.type == DEVICE_NAME:
            return _CPU
        if isinstance(value, int | float | complex) and argument.type.kind() == "TensorType":
            self._has_number = True
        return value

    def _tensor_to_host(self, value: torch.Tensor, is_written: bool, is_out: bool) -> torch.Tensor:
        if value.device.type != DEVICE_NAME:
            self._require_host_operand(value)
            return value
        before = self._stands_for.get(id(value))
        if before is not None:
            host = before[0]
        else:
            pointer = value.untyped_storage().data_ptr()
            if pointer in self._shared:
                whole = self._images.get(pointer)
                if whole is None:
                    whole = self._images[pointer] = image(record_of(value))
                host = whole.view(value.dtype).as_strided(value.size(), value.stride(), value.storage_offset())
            elif is_out and is_dense(value.size(), value.stride()):
                host = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
            else:
                host = read(value)
            if value.is_conj():
                host = host.conj()
            if value.is_neg():
                host = torch._neg_view(host)
            self._stands_for[id(value)] = self._stands_for[id(host)] = (host, value)
        if is_written:
            self._written.append((value, host))
        return host

    def _require_host_operand(self, value: torch.Tensor) -> None:
        if value.dim() == 0 or value.device.type != "cpu":
            return
        name = self._operation._schema.name.removeprefix("aten::")
        if self._named and not name.startswith(_HOST_OPERANDS):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE_NAME}:0 and "
                f"cpu! (in {self._operation}, an operand of size {tuple(value.shape)} is on the CPU. Move it with "
                f".to('{DEVICE_NAME}').)"
            )

    def compute(self, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Runs the CPU's kernel."""
        substitute = SUBSTITUTES.get(self._operation._schema.name)
        if substitute is not None:
            return substitute(self._operation, *arguments, **named)
        if self._has_number:  # a number where the schema has a tensor: the overload for numbers is among the others
            return self._operation.overloadpacket(*arguments, **named)
        return self._operation(*arguments, **named)

    def write_back(self) -> None:
        """The tensors that the operation writes have their new values on the card."""
        for value, host in self._written:
            if value.size() != host.size():
                value.resize_(host.size())
                if value.stride() != host.stride() and is_dense(host.size(), host.stride()):
                    value.as_strided_(host.size(), host.stride())
            host = _as_in_memory(host, value)
            pointer = value.untyped_storage().data_ptr()
            whole = self._images.get(pointer)
            if whole is not None and whole.untyped_storage().data_ptr() == host.untyped_storage().data_ptr():
                write_image(record_of(value), whole)
            else:
                write(value, host)

    def to_card(self, result: Any) -> Any:
        """What the operation returns: a tensor that was given, or a new one of the card."""
        if isinstance(result, torch.Tensor):
            given = self._stands_for.get(id(result))
            if given is not None and given[0] is result and self._returns_operand():
                return given[1]
            return to_card(result) if result.device.type == "cpu" and result.layout is torch.strided else self._refuse(result)
        if isinstance(result, tuple):
            return tuple(self.to_card(part) for part in result)
        if isinstance(result, list):
            return [self.to_card(part) for part in result]
        return result

    def _returns_operand(self) -> bool:
        return any(r.alias_info is not None for r in self._operation._schema.returns)

    def _refuse(self, result: torch.Tensor) -> Any:
        raise RuntimeError(
            f"cannot run {self._operation} on {DEVICE_NAME}: its result is a {result.layout} tensor on {result.device}, "
            "and the card holds strided tensors only. Run it on the CPU."
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


def _in_float32(operation: torch._ops.OpOverload, *arguments: Any, **named: Any) -> Any:
    """Matrix products of 16-bit floats by way of float32: the same rounding, and far quicker than the CPU's own."""
    narrow = next((a.dtype for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()), None)
    if narrow not in (torch.float16, torch.bfloat16) or "out" in named:
        return operation(*arguments, **named)
    wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype is narrow else a for a in arguments]
    found = operation(*wide, **named)
    if isinstance(found, tuple):
        return tuple(f if f is None else f.to(narrow) for f in found)
    return found.to(narrow)


def _convolution(operation: torch._ops.OpOverload, *arguments: Any, **named: Any) -> Any:
    return _in_float32(torch.ops.aten.convolution.default, *arguments, **named)


def _convolution_backward(
    operation: torch._ops.OpOverload,
    gradient: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> Any:
    bias_sizes = [weight.shape[1] * groups if transposed else weight.shape[0]]
    return _in_float32(
        torch.ops.aten.convolution_backward.default, gradient, values, weight, bias_sizes, stride, padding, dilation,
        transposed, output_padding, groups, output_mask,
    )


SUBSTITUTES: Final = {
    "aten::convolution_overrideable": _convolution,
    "aten::convolution_backward_overrideable": _convolution_backward,
    **{f"aten::{name}": _in_float32 for name in ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot")},
}


_BY_NAME: Final = (
    "convolution_overrideable", "convolution_backward_overrideable", "native_layer_norm", "native_group_norm", "addr",
    "addr_", "addr.out", "all.dims", "any.dims",
    "_conj_physical", "conj_physical_",
)  # fmt: skip
"""Operations for which torch has kernels for all devices, that only refuse or round otherwise than the CPU's own."""


def register(library: torch.library.Library, key: str) -> None:
    """The dispatcher calls this module for `key`: also where torch has kernels for all devices that only refuse."""
    library.impl("_local_scalar_dense", item, key)
    for name in _BY_NAME:

        def kernel(*arguments: Any, _name: str = name, **named: Any) -> Any:
            return run_on_host(aten(_name), *arguments, **named)

        library.impl(name, untraced(kernel), key)


@untraced
def item(tensor: torch.Tensor) -> Any:
    """`tensor.item()` of one element."""
    return read(tensor).item()
