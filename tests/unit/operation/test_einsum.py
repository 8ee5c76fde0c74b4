"""einsum: descriptions of every form against torch's, gradients, layouts and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import strideweave as sw
from strideweave import DType, Layout, Shape
from support.operations import check_gradients, dense, on_generic, place

EXTENTS = {"a": 2, "b": 3, "c": 4, "d": 5, "i": 3, "j": 4, "k": 5}


def drawn(labels: str, seed: int) -> torch.Tensor:
    sizes = [EXTENTS[label] for label in labels]
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TEXTS = ["ij,jk->ik", "ij,jk->ki", "ij,kj->ik", "ij,ij->ij", "ij,ij->", "ij,ji->", "i,j->ij", "i,j->ji", "aij,ajk->aik"]
TEXTS += [
    "aij,jk->aik",
    "ij,ajk->aik",
    "abc,cd->bad",
    "ab,ac,ad->bcd",
    "ij,jk,kd->id",
    "ij,i->j",
    "ij,ak->ia",
    "ij->ji",
]
TEXTS += ["ij->", "ij->j", "ij,,jk->ik", ",->", "ab,bc,cd,da->"]


@pytest.mark.parametrize("text", TEXTS)
def test_einsum_equals_torch_and_its_gradients_do(text: str) -> None:
    values = [drawn(labels, k) for k, labels in enumerate(text.split("->")[0].split(","))]
    tensors = [sw.from_torch(v.mT.contiguous().mT if v.dim() > 1 else v) for v in values]
    check_gradients(
        lambda *ts: sw.einsum(text, *ts), *tensors, torch_function=lambda *ts: torch.einsum(text, *ts), numeric=False
    )
    if len(values) < 4 and text not in ("ij->ji",):
        made = sw.einsum(*(on_generic(t) for t in tensors), text)
        torch.testing.assert_close(dense(made), torch.einsum(text, *values))


def test_einsum_gradients_equal_differences() -> None:
    a, b, c = (sw.from_torch(drawn(s, k)) for k, s in enumerate(["ab", "bc", "ac"]))
    check_gradients(lambda *ts: sw.einsum("ab,bc,ac->b", *ts), a, b, c)


def test_einsum_takes_its_description_first_last_spaced_and_compact() -> None:
    a, b = drawn("ij", 0), drawn("jk", 1)
    x, y = sw.from_torch(a), sw.from_torch(b)
    for made in (
        sw.einsum(x, y, "i j, j k -> i k"),
        sw.einsum("ij,jk->ik", x, y),
        sw.einsum(x, y, "rows mid, mid cols -> rows cols"),
    ):
        torch.testing.assert_close(dense(made), a @ b)


def test_einsum_of_groups_splits_leaves_and_names_nested_modes() -> None:
    a, b = torch.randn(6, 4).double(), torch.randn(2, 4, 5).double()
    expected = torch.einsum("gih,ihd->gdi", a.reshape(3, 2, 4), b)  # the last one is the fastest in torch
    made = sw.einsum(sw.from_torch(a), sw.from_torch(b), "(i g) h, i h d -> (g d) i 1", i=2)
    assert made.shape == Shape((3, 5), 2, 1)
    torch.testing.assert_close(dense(made), expected.permute(1, 0, 2).reshape(15, 2, 1))
    x = place(a, Layout.make_layout(Layout.column_major(2, 3), Layout.leaf(4, 6)))
    torch.testing.assert_close(dense(sw.einsum(x, sw.from_torch(b), "(i g) h, i h d -> (g d) i 1")), dense(made))
    check_gradients(
        lambda x, y: sw.einsum(x, y, "(i g) h, i h d -> (g d) i 1", i=2), sw.from_torch(a), sw.from_torch(b)
    )


def test_einsum_of_whole_numbers_keeps_their_dtype() -> None:
    a, b = torch.randint(-9, 9, (3, 4), dtype=torch.int32), torch.randint(-9, 9, (4, 5), dtype=torch.int32)
    for text, expected in [("ij,jk->ik", a @ b), ("ij,ak->i", (a.sum(1) * b.sum()).int())]:
        made = sw.einsum(text, sw.from_torch(a), sw.from_torch(b))
        assert made.dtype() is DType.Int32
        assert torch.equal(made.torch(), expected)


@pytest.mark.parametrize(
    ("text", "left", "right", "expected"),
    [
        ("bij,bjk->bik", Layout.row_major(2, 3, 4), Layout.row_major(2, 4, 5), Layout.row_major(2, 3, 5)),
        ("bij,bjk->bik", Layout.column_major(2, 3, 4), Layout.row_major(2, 4, 5), Layout.column_major(2, 3, 5)),
        ("ij,jk->ki", Layout.row_major(3, 4), Layout.row_major(4, 5), Layout.row_major(5, 3)),
        ("ij,k->ijk", Layout.row_major(3, 4), Layout.row_major(5), Layout.row_major(3, 4, 5)),
        ("ij,k->ijk", Layout.column_major(3, 4), Layout.row_major(5), Layout.column_major(3, 4, 5)),
    ],
)
def test_einsum_follows_the_order_of_its_first_operand(
    text: str, left: Layout, right: Layout, expected: Layout
) -> None:
    x, y = (sw.Tensor(sw.CPU(layout.cosize, dtype=DType.Float32), 0, layout) for layout in (left, right))
    assert sw.einsum(text, x, y).layout == expected


def test_einsum_of_three_contracts_the_cheapest_pair_first() -> None:
    a, b, c = torch.randn(2, 50), torch.randn(50, 60), torch.randn(60, 1)
    made = sw.einsum("ij,jk,kl->il", *(sw.from_torch(t).requires_grad_() for t in (a, b, c)))
    assert {o.shape for o in made.autograd_ctx.inputs()} == {Shape(2, 50), Shape(50, 1)}


X = sw.from_torch(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sw.einsum(X, X), TypeError, "one description"),
        (lambda: sw.einsum("ij->ji"), TypeError, "one description"),
        (lambda: sw.einsum(), TypeError, "nothing"),
        (lambda: sw.einsum("ij,jk->ik", X, 2), TypeError, "a int"),
        (lambda: sw.einsum("ij,jk->ik", X, X), ValueError, "symbol 'j' has size 4 in operand 0 and 3 in operand 1"),
        (lambda: sw.einsum("ij,jk", X, X), ValueError, "0 arrows"),
        (lambda: sw.einsum("ii->i", X), ValueError, "'i'"),
        (lambda: sw.einsum("ij,jk->il", X, X), ValueError, "symbol 'l' is not in the input"),
        (lambda: sw.einsum("ij,jk->ik", X), ValueError, "describes 2 operands, and there are 1"),
        (lambda: sw.einsum("ijk,kl->ijl", X, X), ValueError, "names 3 modes"),
        (lambda: sw.einsum("ij,ij->ij", X, X, accumulator_dtype=DType.Int8), TypeError, "Float32 or Float64"),
    ],
)
def test_what_is_no_einsum_is_refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
