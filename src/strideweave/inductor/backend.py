"""The doors to Inductor: what is registered for the device, and the backend of `torch.compile`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

from strideweave.inductor import decompositions, logs, lowering
from strideweave.inductor.fx_passes import SpyreGraphPass, hints_in_key
from strideweave.inductor.loops import LoopPass
from strideweave.inductor.names import naming_inputs
from strideweave.inductor.scheduling import SpyreScheduling, SpyreWrapper

_LOOPS: Final = LoopPass()
CONFIG: Final[dict[str, Any]] = {
    "split_reductions": False,
    "unroll_reductions_threshold": 1,
    "allow_buffer_reuse": False,
    "inplace_buffers": False,
    "fallback_random": True,
    "layout_optimization": False,
    "comprehensive_padding": False,
    "permute_fusion": False,
    "benchmark_harness": False,
    "alignment_asserts": False,
    "loop_ordering_after_fusion": False,
    "loop_index_inversion_in_fusion": False,
    "joint_graph_constant_folding": False,
    "mtia.disable_welford_reduction": True,
    "max_pointwise_cat_inputs": 0,
    "max_complex_pointwise_cat_inputs": 0,
    "inplace_padding": False,
    "_pre_fusion_custom_pass": _LOOPS,
}
"""How Inductor is set while it compiles for the card: one operation a buffer, reductions whole, no memory reused."""


class SpyreInterface(DeviceInterface):
    """The device as Dynamo sees it."""

    class Worker:
        """What compile workers ask; there are none, so this is the same process."""

        @staticmethod
        def set_device(device: int) -> None:
            """Nothing: there is one."""

        @staticmethod
        def current_device() -> int:
            """The only one."""
            return 0

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            """How many cores there are."""
            from types import SimpleNamespace

            from strideweave.spyre import config

            return SimpleNamespace(multi_processor_count=config.sencores, name="spyre (simulated)", type="spyre")

    @staticmethod
    def current_device() -> int:
        """The only one."""
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        """Nothing: there is one."""

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        """The only one."""
        return 0

    @staticmethod
    def exchange_device(device: int) -> int:
        """The only one."""
        return 0

    @staticmethod
    def device_count() -> int:
        """One."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Always: it is software."""
        return True

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """There are no streams."""
        return 0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Nothing: every call is over when it returns."""

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """None to speak of."""
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Yes."""
        return True


class SpyreOverrides(DeviceOpOverrides):
    """Lines of generated modules: the device needs neither guard nor stream."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """No import."""
        return f"{name} = lambda index: 0"

    def set_device(self, device_idx: int) -> str:
        """Nothing."""
        return "pass"

    def synchronize(self) -> str:
        """Nothing."""
        return "pass"

    def device_guard(self, device_idx: int) -> str:
        """A block that does nothing."""
        return "torch._ops.contextlib.nullcontext()"


@functools.cache
def register() -> None:
    """Let Inductor compile for the card. Once is enough; again is harmless."""
    register_backend_for_device("spyre", SpyreScheduling, SpyreWrapper, device_custom_pass=SpyreGraphPass())
    register_device_op_overrides("spyre", SpyreOverrides())
    register_interface_for_device("spyre", SpyreInterface)
    lowering.register()
    decompositions.register()
    logs.configure()
    _patch_compile_fx()
    _pin_shapes()


def _patch_compile_fx() -> None:
    """Make plain `torch.compile(fn)` use our configuration for graphs on the card; others are left alone."""
    original = compile_fx_module.compile_fx

    @functools.wraps(original)
    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        # compile_fx calls itself again with the configuration set: once is enough.
        is_set = inductor_config._pre_fusion_custom_pass is _LOOPS
        if not is_set and uses_card(model_, example_inputs_):
            _pin_numbers(model_, example_inputs_)
            kwargs["config_patches"] = {**CONFIG, **(kwargs.get("config_patches") or {})}
            kwargs["inner_compile"] = _with_hints(kwargs.get("inner_compile", compile_fx_module.compile_fx_inner))
        with naming_inputs(model_, example_inputs_), hints_in_key(model_):
            return original(model_, example_inputs_, *args, **kwargs)

    compile_fx_module.compile_fx = compile_fx


def _pin_shapes() -> None:
    """Extents of tensors on the card are constants of what is compiled: other extents are compiled anew."""
    from torch._dynamo.variables import builder

    original = builder._automatic_dynamic

    @functools.wraps(original)
    def pinned(e: Any, tx: Any, source: Any, static_shapes: bool, *args: Any, **kwargs: Any) -> Any:
        return original(e, tx, source, static_shapes or e.device.type == "spyre", *args, **kwargs)

    builder._automatic_dynamic = pinned


def _pin_numbers(model: Any, inputs: Any) -> None:
    """Whole numbers that are inputs of a graph become constants of it, guarded: others are compiled anew."""
    nodes = getattr(getattr(model, "graph", None), "nodes", ())
    placeholders = [node for node in nodes if node.op == "placeholder"]
    if len(placeholders) != len(inputs) or not any(isinstance(value, torch.SymInt) for value in inputs):
        return
    numbers = {
        node: int(value)  # which guards it
        for node, value in zip(placeholders, inputs, strict=True)
        if isinstance(value, torch.SymInt)
    }

    def known(node: Any) -> Any:
        return numbers.get(node, node)

    for user in {user for node in numbers for user in node.users}:
        user.args, user.kwargs = torch.fx.map_arg(user.args, known), torch.fx.map_arg(user.kwargs, known)
    model.recompile()


def spyre_backend(gm: Any, example_inputs: Sequence[Any], **options: Any) -> Any:
    """The backend `torch.compile(fn, backend="spyre")`: for tensors in host memory too.

    Tensors on the card are compiled as they are. Those in host memory are copied to the card at every call, and results
    back; what the function changes in place is changed in host memory too.
    """
    register()
    _pin_numbers(gm, example_inputs)
    host = [k for k, t in enumerate(example_inputs) if isinstance(t, torch.Tensor) and t.device.type == "cpu"]
    if not host:
        return compile_fx_module.compile_fx(gm, list(example_inputs))
    moved = list(example_inputs)
    mode = detect_fake_mode(example_inputs)
    with mode if mode is not None else nullcontext():
        for k in host:
            size, stride = tuple(map(int, moved[k].size())), tuple(map(int, moved[k].stride()))
            moved[k] = torch.empty_strided(size, stride, dtype=moved[k].dtype, device="spyre").requires_grad_(
                moved[k].requires_grad
            )
    compiled: Any = compile_fx_module.compile_fx(_on_card(gm), moved)

    def run(*inputs: Any) -> Any:
        arguments = list(inputs)
        for k in host:
            arguments[k] = inputs[k].to("spyre")
        before = [arguments[k]._version for k in host]
        results = compiled(*arguments)
        for k, version in zip(host, before, strict=True):
            if arguments[k]._version != version:
                with torch.no_grad():
                    inputs[k].copy_(arguments[k])
        return tree_map(lambda r: r.cpu() if isinstance(r, torch.Tensor) else r, results)

    return run


def _on_card(gm: Any) -> Any:
    """The same graph, what it makes in host memory made on the card."""
    for node in gm.graph.nodes:
        device = node.kwargs.get("device")
        if device is None and node.target not in _device_constructors():
            continue
        if device is None or torch.device(device).type == "cpu":
            node.kwargs = {**node.kwargs, "device": torch.device("spyre")}
    for name, buffer in list(gm.named_buffers()):
        module, _, leaf = name.rpartition(".")
        setattr(gm.get_submodule(module), leaf, buffer.to("spyre"))
    gm.recompile()
    return gm


def _with_hints(inner_compile: Any) -> Any:
    """The same compilation of one graph, forward or backward, kept under the hints of that graph."""

    @functools.wraps(inner_compile)
    def compiled(gm: Any, *args: Any, **kwargs: Any) -> Any:
        with hints_in_key(gm):
            return inner_compile(gm, *args, **kwargs)

    return compiled


def uses_card(model: Any, inputs: Any) -> bool:
    """Whether a graph has something on the card."""
    if any(isinstance(t, torch.Tensor) and t.device.type == "spyre" for t in inputs):
        return True
    nodes = getattr(getattr(model, "graph", None), "nodes", ())
    return any("spyre" in str(node.kwargs.get("device", "")) for node in nodes)


register()
