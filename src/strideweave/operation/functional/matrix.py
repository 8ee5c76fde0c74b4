"""Matrix operations as functions."""

from __future__ import annotations

from strideweave.dtype import DType, StorageDType
from strideweave.einops import parse_einsum
from strideweave.operation import matrix as definitions
from strideweave.operation.contraction import EINSUM
from strideweave.operation.einsum import einsum_steps, sorted_sizes
from strideweave.operation.functional.pointwise import convert
from strideweave.operation.functional.reductions import reduce_sum
from strideweave.operation.functional.views import rearrange, reshape
from strideweave.operation.reduction import REDUCE_SUM
from strideweave.tensor.tensor import Tensor

__all__ = ["dot", "einsum", "gemm", "linear", "matmul", "outer"]


def matmul(l: Tensor, r: Tensor, *, accumulator_dtype: StorageDType | None = None) -> Tensor:  # noqa: E741
    """The matrix product as NumPy and PyTorch mean it: `(…, M, K) @ (…, K, N)` gives `(…, M, N)`.

    Shapes: the modes before the last two are a batch, aligned from the last, every leaf equal or 1. An operand of one
    mode is a vector, whose mode the result does not have. M, N and batch modes keep their nesting; K is counted first
    leaf fastest, so the two operands may nest it differently.
    The result is dense in the order of the first operand's strides, N in the place of K: row-major in, row-major out.
    Dtypes are promoted by the table. Float16, BFloat16 and 8-bit floats are summed in Float32 and rounded once,
    everything in Float64 for `accumulator_dtype=DType.Float64`; whole numbers are exact modulo two to their bits.
    Errors: ValueError ("Matmul inner dimensions must match", "broadcast-compatible") for shapes, TypeError for Bool,
    for operands on different carrier classes and for another accumulator dtype.

    >>> import strideweave as sw
    >>> x = sw.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> sw.to_list(sw.matmul(x, x)), sw.to_list(sw.matmul(x, sw.tensor([1.0, -1.0])))
    ([[7.0, 10.0], [15.0, 22.0]], [-1.0, -1.0])
    """
    _require_accumulator(accumulator_dtype)
    result: Tensor = definitions.MATMUL(l, r, accumulator_dtype=accumulator_dtype)
    return result


def gemm(l: Tensor, r: Tensor, *, accumulator_dtype: StorageDType | None = None) -> Tensor:  # noqa: E741
    """Rows with rows: `C[i, j]` is the sum over k of `l[i, k] * r[j, k]`.

    Shapes: `(M, K)` and `(N, K)` give `(M, N)`; modes may nest. Layout, dtypes and errors as `matmul`; ValueError
    ("must have a two-mode layout") for others.

    >>> import strideweave as sw
    >>> sw.to_list(sw.gemm(sw.tensor([[1, 2], [3, 4]]), sw.tensor([[10, 1]])))
    [[12], [34]]
    """
    _require_accumulator(accumulator_dtype)
    result: Tensor = definitions.GEMM(l, r, accumulator_dtype=accumulator_dtype)
    return result


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, accumulator_dtype: StorageDType | None = None
) -> Tensor:
    """`x @ weight^T + bias` in one operation, rounded once.

    Shapes: `(…, in)`, `(out, in)` and `(out)` give `(…, out)`. Layout, dtypes and errors as `matmul`; ValueError ("must
    have a two-mode layout") for another weight.

    >>> import strideweave as sw
    >>> sw.to_list(sw.linear(sw.tensor([1.0, 2.0]), sw.tensor([[1.0, 1.0], [0.0, 2.0]]), sw.tensor([0.5, 0.0])))
    [3.5, 4.0]
    """
    if bias is not None and not isinstance(bias, Tensor):
        raise TypeError(f"cannot linear with bias {bias!r}: a bias is a Tensor or None. Pass one.")
    _require_accumulator(accumulator_dtype)
    result: Tensor = definitions.LINEAR(x, weight, bias, accumulator_dtype=accumulator_dtype)
    return result


def dot(l: Tensor, r: Tensor, *, accumulator_dtype: StorageDType | None = None) -> Tensor:  # noqa: E741
    """The sum of the products of two vectors, of rank 0.

    Errors: as `matmul`; ValueError ("must have a one-mode layout") for anything but vectors.

    >>> import strideweave as sw
    >>> sw.item(sw.dot(sw.tensor([1, 2, 3]), sw.tensor([4, 5, 6])))
    32
    """
    _require_accumulator(accumulator_dtype)
    result: Tensor = definitions.DOT(l, r, accumulator_dtype=accumulator_dtype)
    return result


def outer(l: Tensor, r: Tensor) -> Tensor:  # noqa: E741
    """Every value of one vector times every value of the other.

    Shapes: `(M)` and `(N)` give `(M, N)`, first mode fastest. Errors: as `dot`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.outer(sw.tensor([1, 2]), sw.tensor([3, 4, 5])))
    [[3, 4, 5], [6, 8, 10]]
    """
    result: Tensor = definitions.OUTER(l, r)
    return result


def einsum(*operands: Tensor | str, accumulator_dtype: StorageDType | None = None, **sizes: int) -> Tensor:
    """Products summed over the symbols that the result omits, by a description such as `"i j, j k -> i k"`.

    The description comes last, or first as in PyTorch; compact ones such as `"ij,jk->ik"` are read letter by letter.
    Any number of operands: three and more are contracted two at a time, the cheapest pair first. A group names the
    modes of a nested mode, or splits a leaf by `sizes`. Each symbol stands at most once in an operand, and an arrow
    says what the result has.
    Layout and dtypes: as `matmul` for two operands and as `reduce_sum` for one, of which a mere reordering is a view.
    Errors: TypeError for what is no Tensor; ValueError, with the place, for what is no description, and for modes that
    do not fit it.

    >>> import strideweave as sw
    >>> x = sw.tensor([[1, 2], [3, 4]])
    >>> sw.to_list(sw.einsum(x, x, "i j, j k -> i k")), sw.to_list(sw.einsum("ij->i", x))
    ([[7, 10], [15, 22]], [3, 7])
    """
    _require_accumulator(accumulator_dtype)
    texts = [k for k, operand in enumerate(operands) if isinstance(operand, str)]
    if len(texts) != 1 or texts[0] not in (0, len(operands) - 1) or len(operands) < 2:
        raise TypeError(
            f"cannot einsum {', '.join(type(operand).__name__ for operand in operands) or 'nothing'}: it takes Tensors "
            "and one description, which is the last or the first of them. Pass these."
        )
    text = str(operands[texts[0]])
    tensors: list[Tensor] = []
    for operand in operands:
        if isinstance(operand, Tensor):
            tensors.append(operand)
        elif not isinstance(operand, str):
            raise TypeError(f"cannot einsum a {type(operand).__name__}: its operands are Tensors. Pass one.")
    spec = parse_einsum(text)
    if len(tensors) == len(spec.operands) == 1:
        if not spec.summed:
            return rearrange(tensors[0], str(spec), None, **sizes)
        return reduce_sum(tensors[0], str(spec), keepdims=False, accumulator_dtype=accumulator_dtype, **sizes)
    plan = einsum_steps(spec, tuple(tensor.shape for tensor in tensors), sorted_sizes(sizes))
    for k, (source, summed) in enumerate(zip(plan.sources, plan.summed, strict=True)):
        if tensors[k].shape != source:
            tensors[k] = reshape(tensors[k], source)
        if summed:
            tensors[k] = _without(tensors[k], summed, accumulator_dtype)
    for step in plan.steps:
        right, left = tensors.pop(step.right), tensors.pop(step.left)
        made = EINSUM(left, right, contraction=step.contraction, shape=step.shape, accumulator_dtype=accumulator_dtype)
        tensors.append(made)
    return tensors[0]


def _without(x: Tensor, leaves: tuple[int, ...], accumulator_dtype: StorageDType | None) -> Tensor:
    """The sum over these leaves, of the operand's own dtype unless it is Bool."""
    dtype = x.dtype()
    chosen = accumulator_dtype if dtype.is_floating else None
    summed: Tensor = REDUCE_SUM(x, leaves=leaves, keepdims=False, accumulator_dtype=chosen)
    return summed if dtype in (summed.dtype(), DType.Bool) else convert(summed, dtype)


def _require_accumulator(dtype: StorageDType | None) -> None:
    if dtype not in (None, DType.Float32, DType.Float64):
        raise TypeError(f"cannot add up in {dtype!r}: an accumulator is Float32 or Float64. Pass one.")
