"""Direct operations on tiled Tensors against dense torch, over any geometry, layout, dtype, residency and budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

import strideweave as sw
from property.test_geometry import geometries, grid
from property.test_ragged import ragged_geometries
from property.test_tiled_autograd import layouts
from strideweave import CPU, DType, Layout, Shape, Tensor, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.dtype import StorageDType
from strideweave.operation.alignment import strides_dense
from support.direct import Recorded
from support.operations import dense as dense_of
from support.operations import place
from support.scripted_carrier import ScriptedCarrier

FLOATING = [DType.Float32, DType.Float64, DType.BFloat16, DType.Float16]
TOLERANCE = {DType.Float32: 1e-4, DType.Float64: 1e-10, DType.BFloat16: 4e-2, DType.Float16: 6e-3}


@dataclass(frozen=True, slots=True)
class Kind:
    """How a carrier is tiled, apart from what it holds and where."""

    geometry: Geometry
    layout: Layout
    dtype: StorageDType

    @property
    def grid_shape(self) -> tuple[int, ...]:
        return self.geometry.grid_shape

    @property
    def tile_shape(self) -> tuple[int, ...]:
        return self.geometry.tile_shape

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def sizes(self) -> list[int]:
        return [mode.size for mode in self.layout]


@st.composite
def kinds(draw: st.DrawFn, dtypes: list[StorageDType]) -> Kind:
    return Kind(*draw(layouts(st.one_of(geometries(), ragged_geometries()))), draw(st.sampled_from(dtypes)))


@st.composite
def flat_kinds(draw: st.DrawFn, sizes: list[int], dtype: StorageDType) -> Kind:
    """Any tiling of these extents without nested modes, in either order; the last tile of an axis may be smaller."""
    tile = [draw(st.integers(1, n)) for n in sizes]
    layout = draw(st.sampled_from([Layout.row_major, Layout.column_major]))(*sizes)
    grid_shape = [-(-n // t) for n, t in zip(sizes, tile, strict=True)]
    return Kind(Geometry.make(grid_shape, tile, layout, shape=sizes), layout, dtype)


def drawn_values(seed: int, sizes: list[int], dtype: StorageDType, *, whole: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if whole or not dtype.is_floating:
        return torch.randint(-3, 4, sizes, generator=generator).to(dtype.torch_dtype)
    return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype.torch_dtype)


def tiled(draw: st.DrawFn, kind: Kind, values: torch.Tensor) -> Tensor:
    """The values in tiles of that kind, some of them resident, under some budget, with a policy or without."""
    tiles = math.prod(kind.grid_shape)
    flat = torch.empty(kind.layout.size, dtype=kind.dtype.torch_dtype)
    source = place(values, kind.layout)
    source.carrier._read_runs([(0, flat)])
    every = st.sampled_from(grid(kind.grid_shape))
    policy = Recorded()
    if draw(st.booleans()):
        plans = st.sampled_from(["evict", "retain", "nothing"])
        answer = draw(plans)
        policy.answer = lambda required: sw.ResidencyPlan(**({} if answer == "nothing" else {answer: required}))
    if draw(st.booleans()):
        carrier = TiledEvictable(
            CPU.wrap(flat),
            ScriptedCarrier(dtype=kind.dtype),
            kind.grid_shape,
            kind.tile_shape,
            layout=kind.geometry.layout,
            shape=kind.geometry.logical_shape,
            residency_policy=policy,
        )
        carrier.evict(TileSet(draw(st.sets(every))))
    else:
        budget = draw(st.integers(1, tiles))
        carrier = TiledEvictable(
            CPU(0, dtype=kind.dtype),
            ScriptedCarrier(flat),
            kind.grid_shape,
            kind.tile_shape,
            layout=kind.geometry.layout,
            shape=kind.geometry.logical_shape,
            budget=budget * math.prod(kind.tile_shape) * kind.dtype.itemsize,
            residency_policy=policy,
        )
        carrier.promote(TileSet(draw(st.lists(every, unique=True, max_size=budget))))
    return Tensor(carrier, 0, kind.layout)


def move_around(draw: st.DrawFn, tensor: Tensor) -> None:
    """Some other tiles are resident afterwards."""
    carrier = tensor.carrier
    if isinstance(carrier, TiledEvictable):
        carrier.evict(TileSet(draw(st.sets(st.sampled_from(grid(carrier.grid_shape))))))


def values_of(tensor: Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return dense_of(tensor.materialize() if isinstance(tensor.carrier, TiledEvictable) else tensor)


def bits(values: torch.Tensor) -> bytes:
    packed = torch.empty(values.numel(), dtype=values.dtype).copy_(
        values.flatten()
    )  # of stride 1, however few there are
    return bytes(packed.view(torch.uint8).tolist())


def assert_close(found: torch.Tensor, wanted: torch.Tensor, dtype: StorageDType, *, exact: bool) -> None:
    if exact:
        assert torch.equal(found.double(), wanted.double())
    else:
        scale = max(1.0, wanted.abs().max().item() if wanted.numel() else 1.0)
        torch.testing.assert_close(
            found.double(), wanted.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale
        )


def check(
    draw: st.DrawFn,
    run: Callable[..., Tensor],
    oracle: Callable[..., torch.Tensor],
    operands: list[Tensor],
    held: list[torch.Tensor],
    *,
    exact: bool,
) -> None:
    """The result and every gradient, against dense torch; afterwards nothing is pinned."""
    dtype = operands[0].dtype()
    wants = [draw(st.booleans()) and dtype.is_floating for _ in operands]
    leaves = [operand.detach().requires_grad_(wanted) for operand, wanted in zip(operands, wants, strict=True)]
    wide = torch.float64 if dtype.is_floating else torch.int64
    dense = [values.to(wide).requires_grad_(wanted) for values, wanted in zip(held, wants, strict=True)]
    result = run(*leaves)
    expected = oracle(*dense)
    assert type(result.carrier) is CPU
    assert result.dtype() is dtype
    assert result.layout == run(*[on_cpu(t) for t in operands]).layout
    assert_close(dense_of(result), expected.detach(), dtype, exact=exact)
    for operand in operands:
        move_around(draw, operand)
    if any(wants):
        seed = draw(st.integers(0, 999))
        cotangent = drawn_values(seed, [mode.size for mode in result.layout], dtype, whole=exact)
        result.backward(place(cotangent, result.layout))
        expected.backward(cotangent.double())
        for leaf, twin in zip(leaves, dense, strict=True):
            assert (leaf.grad is None) == (twin.grad is None)
            if twin.grad is not None and leaf.grad is not None:
                assert type(leaf.grad.carrier) is type(leaf.carrier)
                assert leaf.grad.dtype() is dtype
                assert_close(values_of(leaf.grad), twin.grad, dtype, exact=exact)
    for operand in operands:
        if isinstance(operand.carrier, TiledEvictable):
            assert operand.carrier.statistics().pinned_tiles == 0
            assert operand.carrier.statistics().in_flight_tiles == 0
            assert operand.carrier.version == 0
            operand.carrier.evict(TileSet(grid(operand.carrier.grid_shape)))


def on_cpu(tensor: Tensor) -> Tensor:
    """Zeros of the same layout on the compute carrier."""
    return Tensor(CPU(tensor.layout.cosize, dtype=tensor.dtype()), 0, tensor.layout)


def is_exact(draw: st.DrawFn, dtype: StorageDType) -> bool:
    """Whether the values are small whole numbers, of which every sum and product is exact."""
    return not dtype.is_floating or (dtype in (DType.Float32, DType.Float64) and draw(st.booleans()))


@given(st.data())
def test_pointwise_results_and_gradients_equal_those_of_torch(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(kinds([*FLOATING, DType.Int64]))
    exact = is_exact(draw, kind.dtype)
    held = [drawn_values(draw(st.integers(0, 999)), kind.sizes, kind.dtype, whole=exact)]
    operands = [tiled(draw, kind, held[0])]
    name = draw(st.sampled_from(["add", "mul", "elementwise_mul", "relu", "scaled", "scaling", "twice"]))
    if name in ("add", "mul", "elementwise_mul"):
        form = draw(st.sampled_from(["ordinary", "broadcast", "tiled", "same"]))
        if form == "same":
            function = getattr(sw, name)
            base = torch.add if name == "add" else torch.mul
            check(draw, lambda x: function(x, x), lambda x: base(x, x), operands, held, exact=exact)
            return
        if form == "broadcast":
            kept = [draw(st.booleans()) for _ in kind.sizes]
            sizes = [n if keep else 1 for n, keep in zip(kind.sizes, kept, strict=True)]
            leaves = [
                tuple(n if keep else 1 for n, _ in mode.leaves()) for mode, keep in zip(kind.layout, kept, strict=True)
            ]
            shape = Shape([mode if len(mode) > 1 else mode[0] for mode in leaves])
        else:
            sizes, shape = kind.sizes, kind.shape
        other = drawn_values(draw(st.integers(0, 999)), sizes, kind.dtype, whole=exact)
        held.append(other)
        operands.append(tiled(draw, kind, other) if form == "tiled" else place(other, strides_dense(shape)))
        if draw(st.booleans()):
            held.reverse()
            operands.reverse()
        check(draw, getattr(sw, name), torch.add if name == "add" else torch.mul, operands, held, exact=exact)
    elif name == "relu":
        check(draw, sw.relu, torch.relu, operands, held, exact=exact)
    elif name == "twice":
        check(draw, lambda x: sw.add(sw.mul(x, x), x), lambda x: x * x + x, operands, held, exact=exact)
    else:
        scalar = draw(st.integers(-3, 3)) if exact else draw(st.sampled_from([0.5, -2.0, 3]))
        run = (lambda x: sw.mul(x, scalar)) if name == "scaled" else (lambda x: sw.mul(scalar, x))
        check(draw, run, lambda x: x * scalar, operands, held, exact=exact)


@given(st.data())
def test_sums_and_their_gradients_equal_those_of_torch(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(kinds([*FLOATING, DType.Int64]))
    exact = is_exact(draw, kind.dtype)
    held = drawn_values(draw(st.integers(0, 999)), kind.sizes, kind.dtype, whole=exact)
    x = tiled(draw, kind, held)
    axes = draw(st.sets(st.integers(0, len(kind.sizes) - 1), min_size=1)) if draw(st.booleans()) else None
    keepdims = draw(st.booleans())
    chosen = tuple(range(len(kind.sizes))) if axes is None else tuple(sorted(axes))
    check(
        draw,
        lambda t: sw.reduce_sum(t, axis=None if axes is None else chosen, keepdims=keepdims),
        lambda t: t.sum(chosen, keepdim=keepdims),
        [x],
        [held],
        exact=exact,
    )


@given(st.data())
def test_products_of_matrices_and_their_gradients_equal_those_of_torch(data: st.DataObject) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from([*FLOATING, DType.Int64]))
    exact = is_exact(draw, dtype)
    m, k, n = (draw(st.integers(1, 6)) for _ in range(3))
    batch = [draw(st.integers(1, 3))] if draw(st.booleans()) else []
    sizes = [[*batch, m, k], [*(batch if draw(st.booleans()) else []), k, n]]
    held = [drawn_values(draw(st.integers(0, 999)), one, dtype, whole=exact) for one in sizes]
    which = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    operands = [
        tiled(draw, draw(flat_kinds(one, dtype)), values)
        if is_tiled
        else place(values, draw(st.sampled_from([Layout.row_major, Layout.column_major]))(*one))
        for one, values, is_tiled in zip(sizes, held, which, strict=True)
    ]
    check(draw, sw.matmul, torch.matmul, operands, held, exact=exact)


PROGRAMS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: sw.add(x, y),
    lambda x, y: sw.mul(y, x),
    lambda x, y: sw.relu(x),
    lambda x, y: sw.reduce_sum(x),
    lambda x, y: sw.reduce_sum(x, axis=0),
    lambda x, y: sw.reduce_sum(x, axis=len(x.layout) - 1),
    lambda x, y: sw.elementwise_mul(x, x),
]


@given(st.data())
def test_bits_of_results_and_gradients_do_not_depend_on_what_is_resident(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(kinds(FLOATING))
    held = drawn_values(draw(st.integers(0, 999)), kind.sizes, kind.dtype, whole=False)
    other = drawn_values(draw(st.integers(0, 999)), kind.sizes, kind.dtype, whole=False)
    program = draw(st.sampled_from(PROGRAMS))
    seen = set()
    for _ in range(3):
        x = tiled(draw, kind, held).requires_grad_()
        y = place(other, strides_dense(kind.shape)).requires_grad_()
        result = program(x, y)
        move_around(draw, x)
        result.backward(place(drawn_values(7, [m.size for m in result.layout], kind.dtype, whole=False), result.layout))
        found = [result.detach(), x.grad, *([] if y.grad is None else [y.grad])]
        seen.add(tuple(bits(values_of(tensor)) for tensor in found))
    assert len(seen) == 1


@given(st.data())
def test_bits_of_a_product_do_not_depend_on_what_is_resident(data: st.DataObject) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from(FLOATING))
    m, k, n = (draw(st.integers(1, 8)) for _ in range(3))
    kind = draw(flat_kinds([m, k], dtype))
    left = drawn_values(draw(st.integers(0, 999)), [m, k], dtype, whole=False)
    right = drawn_values(draw(st.integers(0, 999)), [k, n], dtype, whole=False)
    right_kind = draw(flat_kinds([k, n], dtype)) if draw(st.booleans()) else None
    seen = set()
    for _ in range(3):
        x = tiled(draw, kind, left).requires_grad_()
        y = (place(right, Layout.row_major(k, n)) if right_kind is None else tiled(draw, right_kind, right)).detach()
        y.requires_grad_()
        result = sw.matmul(x, y)
        move_around(draw, x)
        result.backward(place(drawn_values(7, [m, n], dtype, whole=False), result.layout))
        seen.add(tuple(bits(values_of(tensor)) for tensor in (result.detach(), x.grad, y.grad)))
    assert len(seen) == 1


@given(st.data())
def test_gradients_add_up_over_programs_of_projections_and_direct_operations(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(kinds([DType.Float64]))
    held = drawn_values(draw(st.integers(0, 999)), kind.sizes, DType.Float64, whole=True)
    x = tiled(draw, kind, held).requires_grad_()
    dense = held.clone().requires_grad_()
    carrier = x.carrier
    assert isinstance(carrier, TiledEvictable)
    for _ in range(draw(st.integers(1, 3))):
        step = draw(st.sampled_from(["relu", "square", "sum", "project"]))
        if step == "relu":
            mine, theirs = sw.relu(x), dense.relu()
        elif step == "square":
            mine, theirs = sw.mul(x, x), dense * dense
        elif step == "sum":
            mine, theirs = sw.mul(sw.reduce_sum(x, axis=0), 2.0), dense.sum(0) * 2
        else:
            tile = draw(st.sampled_from(grid(kind.grid_shape)))
            mine = carrier.project(x, sw.TileSelection([[c] for c in tile])).wait(5)
            theirs = dense[tuple(slice(c * t, (c + 1) * t) for c, t in zip(tile, kind.tile_shape, strict=True))]
        move_around(draw, x)
        sw.reduce_sum(mine).backward()
        theirs.sum().backward()
    assert torch.equal(values_of(x.grad), dense.grad)  # type: ignore[arg-type]
    assert carrier.statistics().pinned_tiles == 0
    carrier.release()
