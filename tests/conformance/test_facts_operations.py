"""Facts, section g: operations. What the unit tests say already is named here and not said twice.

    values, layouts, gradients and refusals of a family   unit/operation/test_<family>.py
    dispatch, carriers that do not match                  unit/operation/test_dispatch.py
    alignment                                             unit/operation/test_alignment.py
    promotion                                             unit/operation/test_promotion.py
    plans, capabilities                                   unit/extension/test_capabilities.py
    descriptions                                          unit/einops/

Decided otherwise in `tensors.md` and the issue: `matmul` is NumPy's (that of the facts is `gemm`), whole numbers wrap,
dtypes promote as in PyTorch, and results keep the order of the first operand.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import strideweave as sw
from strideweave import CPU, DType, Generic, Layout, Tensor, friendly, functional, operation
from strideweave.carriers.operation_policy import resolve_operation_plan

UNARY = """neg abs sign recip sqrt rsqrt exp exp2 log log2 sin cos erf floor ceil round relu sigmoid tanh gelu silu
    softplus elu leaky_relu logical_not"""
BINARY = "add sub mul elementwise_mul div pow maximum minimum rem eq ne lt le gt ge"
BY_PLACES = {
    1: UNARY,
    2: f"{BINARY} reshape permute broadcast_to squeeze unsqueeze cumsum matmul "
    "reduce_sum reduce_prod reduce_max reduce_min argmax argmin",
    3: "as_strided rearrange broadcast_in_dim select clamp einsum gather sort",
    4: "conv_general scatter scatter_add topk",
}
NOTHING_ADDED = "reduce_prod reduce_max reduce_min argmax argmin cumsum relu add"
PLACES = {name: count for count, names in BY_PLACES.items() for name in names.split()}
"""How many arguments each function of the facts takes by place."""

KEYWORDS = {
    "reduce_sum": {"accumulator_dtype"},
    "matmul": {"accumulator_dtype"},
    "conv_general": {"lhs_dilation", "kernel_dilation", "feature_groups", "lhs_dims", "kernel_dims", "output_dims"},
}


@pytest.mark.parametrize("name", PLACES)
def test_function_is_in_three_places_and_takes_what_the_facts_give_it(name: str) -> None:
    function = getattr(sw, name)
    assert function is getattr(functional, name) is getattr(operation, name)
    signature = inspect.signature(function)
    keywords = dict.fromkeys(KEYWORDS.get(name, ()))
    signature.bind(*range(PLACES[name]), **keywords)
    if not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()) and name not in ("as_strided",):
        with pytest.raises(TypeError, match="too many positional"):
            signature.bind(*range(PLACES[name] + 1), **keywords)


def test_defaults_are_those_of_the_facts() -> None:
    defaults = {
        name: [p.default for p in inspect.signature(getattr(sw, name)).parameters.values()][start:]
        for name, start in (("sort", 1), ("topk", 2))
    }
    assert defaults == {"sort": [-1, False], "topk": [-1, True]}
    assert (sw.SortResult._fields, sw.TopKResult._fields) == (("values", "indices"),) * 2
    assert isinstance(sw.sort(sw.tensor([2.0, 1.0])), sw.SortResult)
    assert isinstance(sw.topk(sw.tensor([2.0, 1.0]), 1), sw.TopKResult)


def other(slots: int) -> Tensor:
    return Tensor(Generic([0.0] * slots, dtype=DType.Float32), 0, Layout.leaf(slots, 1))


@pytest.mark.parametrize("name", BINARY.split())
def test_operands_are_checked_kinds_first_then_carriers_then_shapes(name: str) -> None:
    function = getattr(sw, name)
    for wrong in ("1", None, [1.0]):
        with pytest.raises(TypeError, match="it takes a Tensor"):
            function(wrong, other(2))
    with pytest.raises(TypeError, match="Tensor backing carriers must match"):
        function(sw.ones(3), other(2))
    with pytest.raises(ValueError, match="broadcast-compatible"):
        function(other(3), other(2))


@pytest.mark.parametrize("name", UNARY.split())
def test_unary_operation_of_no_tensor_is_refused(name: str) -> None:
    for wrong in (1.0, None, [1.0]):
        with pytest.raises(TypeError, match="it takes a Tensor"):
            getattr(sw, name)(wrong)


def test_tiled_operand_beside_a_reference_carrier_is_refused() -> None:
    tiled = sw.TiledEvictable(CPU(0), sw.FileBacked(size=4), (2,), (2,))
    x = Tensor(tiled, 0, Layout.leaf(4, 1))
    with pytest.raises(TypeError, match="Tensor backing carriers must match"):
        sw.add(x, other(4))
    tiled.release()


SPECIALS = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan, 3e38]


@pytest.mark.parametrize("make", [sw.tensor, None], ids=["CPU", "Generic"])
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (sw.recip, lambda x: np.float32(1) / x),
        (sw.sqrt, np.sqrt),
        (sw.log, np.log),
        (sw.log2, np.log2),
        (sw.exp, np.exp),
        (lambda x: x / 0.0, lambda x: x / np.float32(0)),
        (lambda x: x * x, lambda x: x * x),
        (lambda x: sw.maximum(x, 1.0), lambda x: np.maximum(x, np.float32(1))),
        (lambda x: sw.minimum(x, 1.0), lambda x: np.minimum(x, np.float32(1))),
    ],
)
def test_special_values_are_results_and_not_errors(
    make: Any, mine: Callable[[Tensor], Tensor], theirs: Callable[[Any], Any]
) -> None:
    with np.errstate(all="ignore"):
        expected = theirs(np.array(SPECIALS, dtype=np.float32))
    generic = Tensor(Generic(SPECIALS, dtype=DType.Float32), 0, Layout.leaf(len(SPECIALS), 1))
    x = generic if make is None else make(SPECIALS)
    np.testing.assert_allclose(np.array(sw.to_list(mine(x)), dtype=np.float32), expected, rtol=1e-6)


@pytest.mark.parametrize("carrier", [CPU, Generic])
def test_float32_is_rounded_at_every_step(carrier: type[sw.Carrier]) -> None:
    values = [16777216.0]
    x = sw.tensor(values) if carrier is CPU else Tensor(Generic(values, dtype=DType.Float32), 0, Layout.leaf(1, 1))
    assert sw.to_list(x + 1.0 + 1.0) == [16777216.0]  # 2^24 + 1 is rounded back, twice


def test_relu_at_zero_has_gradient_zero_and_ties_have_halves() -> None:
    x = sw.tensor([0.0, -1.0, 1.0], requires_grad=True)
    assert sw.to_list(sw.grad(sw.relu(x), [x], sw.ones(3))[0]) == [0.0, 0.0, 1.0]
    for extreme in (sw.maximum, sw.minimum):
        assert sw.to_list(sw.grad(extreme(x, x.detach()), [x], sw.ones(3))[0]) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(("a", "b", "result"), [("Int32", "Int32", "Int32"), ("Int32", "Float32", "Float32")])
def test_plan_keeps_whole_numbers_whole_unless_a_float_is_there(a: str, b: str, result: str) -> None:
    for name in ("add", "sub", "mul", "maximum"):
        plan = resolve_operation_plan(name, DType.from_name(a), DType.from_name(b))
        assert plan.output is DType.from_name(result)
    assert resolve_operation_plan("div", DType.from_name(a), DType.from_name(b)).output is DType.Float32


def test_plan_with_python_numbers() -> None:
    assert resolve_operation_plan("mul", DType.Int32, int).output is DType.Int32
    assert resolve_operation_plan("mul", DType.Int32, float).output is DType.Float32
    assert resolve_operation_plan("pow", DType.Int32, int).output is DType.Int32
    with pytest.raises(TypeError):
        resolve_operation_plan("relu", int)
    with pytest.raises(NotImplementedError, match="no_such"):
        resolve_operation_plan("no_such", DType.Float32)


@pytest.mark.parametrize("name", NOTHING_ADDED.split())
def test_only_what_adds_up_takes_an_accumulator(name: str) -> None:
    operands = [DType.Float32] * (2 if name == "add" else 1)
    with pytest.raises(TypeError, match="no accumulator dtype"):
        resolve_operation_plan(name, *operands, accumulator_dtype=DType.Float64)


def test_errors_are_of_the_kinds_of_the_facts() -> None:
    assert issubclass(operation.UnsupportedOperationPlan, NotImplementedError)
    assert issubclass(sw.ProviderContractError, RuntimeError)
    assert [role.value for role in operation.OperandRole] == ["tensor", "weak_scalar"]
    assert [kind.value for kind in sw.OperandKind] == ["tensor", "weak_scalar", "structural"]


@pytest.mark.parametrize("name", ["add", "elementwise_mul", "mul", "relu", "reduce_sum", "matmul"])
def test_six_operations_that_tiles_need_are_defined(name: str) -> None:
    assert operation.find(name).name == name


@pytest.mark.parametrize(
    "make",
    [
        lambda: friendly.full(2, 3, value=1.0, dtype=DType.Float32),
        lambda: friendly.zeros(2, 3),
        lambda: friendly.ones(2, 3),
        lambda: friendly.rand(2, 3),
        lambda: friendly.randn(2, 3, rng=0),
    ],
    ids=["full", "zeros", "ones", "rand", "randn"],
)
def test_friendly_tensors_are_column_major_float32_in_host_memory(make: Callable[[], Tensor]) -> None:
    x = make()
    assert (x.layout, x.dtype(), x.carrier_type()) == (Layout.column_major(2, 3), DType.Float32, CPU)
    assert friendly.column_major(2, 3) == x.layout
    assert friendly.row_major(2, 3) == Layout.row_major(2, 3)
