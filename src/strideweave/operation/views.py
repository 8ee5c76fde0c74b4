"""Views: results that share the storage of their operand, for which no kernel runs; and `embed`, their adjoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strideweave.carriers.carrier import Scalar
from strideweave.carriers.cpu import CPU
from strideweave.einops import rearranged
from strideweave.layout import Layout, Tree
from strideweave.operation.alignment import dense_like, with_strides
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import OperationDefinition, define
from strideweave.operation.execution import executor_of
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.promotion import computed_in
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor import views
from strideweave.tensor.copying import stored, values_of
from strideweave.tensor.tensor import Tensor

Place = Callable[[Layout, Any], tuple[int, Layout]]


def _moved(call: BoundOperationCall) -> OperationPlan:
    own = call.operands[0].dtype()
    return OperationPlan(
        call.definition.name, (OperandPlan(OperandRole.TENSOR, own),), Arithmetic.NONE, Accumulation.NONE, None, own
    )


def _view(name: str, place: Place) -> OperationDefinition:
    """The definition of a view; `place` says where it lies in a layout, given the option `how`."""

    def resolve(call: BoundOperationCall) -> ResolvedInvocation:
        (x,) = call.operands
        offset, layout = place(x.layout, call.options["how"])
        spec = ResultSpec(x.dtype(), layout.shape, layout, view_of=0, offset=offset)
        return ResolvedInvocation(call, _moved(call), (spec,))

    def vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
        # The same view of a dense tensor of the operand's shape: where the cotangent belongs in its gradient.
        source = context.invocation.operands[0].layout
        target = dense_like(source.shape, [source])
        offset, layout = place(target, context.options["how"])
        if executor_of(type(g.carrier)) is None:  # a carrier that only stores: embedded in host memory
            return (_embedded(g, target, offset, layout),)
        return (EMBED(g, target=target, offset=offset, layout=layout),)

    return define(
        name,
        OperationSchema([OperandSpec("x", OperandKind.TENSOR, differentiable=True)], [OptionSpec("how")]),
        resolve,
        None,
        vjp,
    )


def _embedded(g: Tensor, target: Layout, offset: int, layout: Layout) -> Tensor:
    values = values_of(g)
    host = Tensor._make(CPU.wrap(values.contiguous().reshape(-1)), 0, Layout.row_major(*values.shape))
    host = Tensor._make(host.carrier, 0, with_strides(g.shape, [d for _, d in host.layout.leaves()]))
    embedded: Tensor = EMBED(host, target=target, offset=offset, layout=layout)
    return stored(embedded.torch(), target, g.carrier)


def _slice(layout: Layout, how: Sequence[tuple[int | None, int | None, int | None] | int]) -> tuple[int, Layout]:
    return views.slice_view(layout, tuple(slice(*key) if isinstance(key, tuple) else key for key in how))


def _rearrange(layout: Layout, how: tuple[Any, ...]) -> tuple[int, Layout]:
    described, second = how
    if isinstance(described, Tree):
        return views.rearrange(layout, described, second)
    return 0, rearranged(layout, described, **dict(second))


def _reshape(layout: Layout, how: tuple[Any, str]) -> tuple[int, Layout]:
    shape, order = how
    if order == "F":
        return views.reshape(layout, shape)
    # Last mode fastest is first mode fastest with the modes read backwards, before and after.
    moved, backward = views.reshape(layout.permute(*reversed(range(len(layout)))), tuple(reversed(shape)))
    return moved, backward.permute(*reversed(range(len(backward))))


SLICE = _view("slice", _slice)
PERMUTE = _view("permute", lambda layout, how: views.permute(layout, *how))
TRANSPOSE = _view("transpose", lambda layout, how: views.transpose(layout, *how))
RESHAPE = _view("reshape", _reshape)
AS_STRIDED = _view("as_strided", lambda layout, how: views.as_strided(layout, *how))
BROADCAST_TO = _view("broadcast_to", lambda layout, how: views.broadcast_to(layout, how))
BROADCAST_IN_DIM = _view("broadcast_in_dim", lambda layout, how: views.broadcast_in_dim(layout, *how))
SQUEEZE = _view("squeeze", lambda layout, how: views.squeeze(layout, how))
UNSQUEEZE = _view("unsqueeze", lambda layout, how: views.unsqueeze(layout, how))
REARRANGE = _view("rearrange", _rearrange)
FLATTEN_MODES = _view("flatten_modes", lambda layout, how: views.flatten_modes(layout, *how))


# -- embed: the cotangent of a view, added into zeros ------------------------------------------------------------------


def _resolve_embed(call: BoundOperationCall) -> ResolvedInvocation:
    (g,) = call.operands
    target: Layout = call.options["target"]
    own = g.dtype()
    computed = computed_in(own)
    plan = OperationPlan(
        "embed",
        (OperandPlan(OperandRole.TENSOR, own, None if computed is own else computed),),
        Arithmetic.BINARY32,
        Accumulation.BINARY32,
        None,
        own,
    )
    return ResolvedInvocation(call, plan, (ResultSpec(own, target.shape, target),))


def _embed_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    target, offset, layout = (invocation.options[k] for k in ("target", "offset", "layout"))
    slots: list[Scalar] = [0.0] * target.cosize
    for ordinal, value in enumerate(invocation.values(0)):
        slots[offset + layout.index(ordinal)] += value
    return [[slots[target.index(k)] for k in range(target.size)]]


EMBED = define(
    "embed",
    OperationSchema(
        [OperandSpec("g", OperandKind.TENSOR, differentiable=False)],
        [OptionSpec("target"), OptionSpec("offset"), OptionSpec("layout")],
    ),
    _resolve_embed,
    _embed_reference,
    lambda context, g: (None,),
)


# -- copy: the same values in fresh storage, wherever a layout puts them -----------------------------------------------


def _resolve_copy(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    layout = call.options["layout"]
    if layout is None:
        layout = dense_like(x.shape, [x.layout])
    return ResolvedInvocation(call, _moved(call), (ResultSpec(x.dtype(), x.shape, layout),))


COPY = define(
    "copy",
    OperationSchema([OperandSpec("x", OperandKind.TENSOR, differentiable=True)], [OptionSpec("layout", None)]),
    _resolve_copy,
    lambda invocation: [invocation.values(0)],
    lambda context, g: (g,),
)
