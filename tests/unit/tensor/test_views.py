"""Views of layouts: what is refused, in which words, and the cases that a property meets too seldom."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strideweave.layout import Layout, Shape, Stride
from strideweave.tensor import views

ROWS = Layout.row_major(4, 6)
COLUMNS = Layout.column_major(4, 6)
NESTED = Layout(Shape((2, 3), 4), Stride((1, 8), 2))


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ((slice(None),), ValueError, "exactly one key per top-level mode"),
        ((slice(None), 0, 0), ValueError, "exactly one key per top-level mode"),
        ((Ellipsis, slice(None)), ValueError, "exactly one key per top-level mode"),
        ((None, slice(None)), ValueError, "exactly one key per top-level mode"),
        ((slice(None), 4), ValueError, "View integer key is out of domain"),
        ((slice(None), -1), ValueError, "View integer key is out of domain"),
        ((slice(None), slice(2, 2)), ValueError, "View slices must be non-empty"),
        ((slice(None), slice(None, None, -1)), ValueError, "positive step"),
        ((slice(None), slice(None, None, 0)), ValueError, "positive step"),
        ((slice(None), slice(0, 3, 2)), ValueError, "divisible by its step"),
        ((slice(0, 2), 0), ValueError, "whole slices are supported for non-leaf"),
        ((slice(None), 1.0), TypeError, "int or a slice"),
        ((slice(None), True), TypeError, "int or a slice"),
        ((slice(None), (0,)), TypeError, "int or a slice"),
    ],
)
def test_slice_view_with_a_bad_key_is_refused(keys: tuple[object, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        views.slice_view(NESTED, keys)


def test_slice_view_of_ints_alone_has_rank_0() -> None:
    assert views.slice_view(NESTED, (3, 2)) == (1 + 8 + 4, Layout.empty())


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((24,), Layout.leaf(24, 1)),
        (24, Layout.leaf(24, 1)),
        (-1, Layout.leaf(24, 1)),
        ([2, 2, 6], Layout(Shape(2, 2, 6), Stride(1, 2, 4))),
        ((2, -1), Layout(Shape(2, 12), Stride(1, 2))),
        (((2, -1), 6), Layout(Shape((2, 2), 6), Stride((1, 2), 4))),
        (Shape(8, 3), Layout(Shape(8, 3), Stride(1, 8))),
        ((1, 24, 1), None),
    ],
)
def test_reshape_of_dense_columns_takes_every_shape(shape: Any, view: Layout | None) -> None:
    delta, made = views.reshape(COLUMNS, shape)
    assert delta == 0
    assert [made(i) for i in range(24)] == list(range(24))
    assert view is None or made == view


def test_reshape_to_its_own_shape_is_the_same_object() -> None:
    assert views.reshape(NESTED, NESTED.shape)[1] is NESTED
    overlapping = Layout(Shape(3, 2), Stride(1, 2))
    assert views.reshape(overlapping, (3, 2))[1] is overlapping


def test_reshape_splits_a_mode_of_rows_but_does_not_join_two() -> None:
    assert views.reshape(ROWS, (2, 2, 3, 2)) == (0, Layout(Shape(2, 2, 3, 2), Stride(6, 12, 1, 3)))
    with pytest.raises(ValueError, match=r"constant stride along the mode of 24\..* Copy first"):
        views.reshape(ROWS, 24)


@pytest.mark.parametrize(
    ("shape", "error", "words"),
    [
        ((5, 5), ValueError, "has 24 coordinates and the shape 25"),
        ((5, -1), ValueError, "the other extents make 5"),
        ((0, -1), ValueError, "the other extents make 0"),
        ((-1, -1), ValueError, "more than one -1"),
        ((-2, 12), ValueError, "Shape value must be positive"),
        ((2.0, 12), TypeError, "int or an iterable"),
        ("24", TypeError, "int or an iterable"),
        ((3, 8), ValueError, "no constant stride"),
    ],
)
def test_reshape_to_a_bad_shape_is_refused(shape: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        views.reshape(ROWS, shape)


@pytest.mark.parametrize(("shape", "stride", "offset"), [((2, 3), (1, 4), 0), ((2, 2), (12, 5), 3), ((), (), 7)])
def test_as_strided_of_contiguous_memory_is_torchs(
    shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    delta, view = views.as_strided(COLUMNS, shape, stride, offset)
    theirs = torch.arange(24).as_strided(shape, stride, offset)
    assert delta == theirs.storage_offset()
    assert view.leaves() == tuple(zip(theirs.shape, theirs.stride(), strict=True))


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "error", "words"),
    [
        ((2, 3), (1, 1), 0, ValueError, "must be injective"),
        ((2,), (0,), 0, ValueError, "must be injective"),
        ((25,), (1,), 0, ValueError, "takes ordinals 0 to 24, and there are 24"),
        ((24,), (1,), 1, ValueError, "takes ordinals 1 to 24"),
        ((2,), (1,), -1, ValueError, "takes ordinals -1"),
        ((2,), (1,), 1.0, TypeError, "offset must be an integer"),
        ((2,), (1, 1), 0, ValueError, "do not match in Structure"),
        ((2,), (-1,), 0, ValueError, "must not be negative"),
        ((3,), (2,), 0, ValueError, "no constant stride along some mode"),
        ((8,), (1,), 0, ValueError, "no constant stride along the mode of 8"),
        ((2,), (1,), 3, ValueError, "no constant stride along some mode"),
    ],
)
def test_as_strided_with_a_bad_selector_is_refused(
    shape: Any, stride: Any, offset: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        views.as_strided(ROWS, shape, stride, offset)


@pytest.mark.parametrize(
    ("shape", "words"),
    [((4, 6, 1), "same shape profile"), ((4, 12), "can only widen an extent-1 leaf"), ((6,), "same shape profile")],
)
def test_broadcast_to_another_profile_or_extent_is_refused(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        views.broadcast_to(ROWS, shape)


@pytest.mark.parametrize(
    ("target", "places", "error", "words"),
    [
        ((4, 6, 2), (1, 0), ValueError, "strictly increasing"),
        ((4, 6, 2), (0, 0), ValueError, "strictly increasing"),
        ((4, 6, 2), (0,), ValueError, "1 places for 2 modes"),
        ((4, 6, 2), (0, 3), ValueError, "has no mode 3"),
        ((4, 6, 2), (-1, 1), ValueError, "has no mode -1"),
        ((4, 6, 2), (0, 1.0), TypeError, "no int"),
        ((4, 6, 2), (True, 1), TypeError, "no int"),
        ((4, 6, 2), (0, 2), ValueError, "can only widen an extent-1 leaf"),
        (((4, 1), 6), (0, 1), ValueError, "same shape profile"),
    ],
)
def test_broadcast_in_dim_that_does_not_fit_is_refused(
    target: Any, places: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        views.broadcast_in_dim(ROWS, target, places)


@pytest.mark.parametrize(
    ("view", "error", "words"),
    [
        (lambda: views.squeeze(ROWS, 0), ValueError, "has 4 coordinates"),
        (lambda: views.squeeze(ROWS, 2), ValueError, "no such place"),
        (lambda: views.squeeze(Layout.empty(), 0), ValueError, "no such place"),
        (lambda: views.squeeze(ROWS, 0.0), TypeError, "no int"),
        (lambda: views.unsqueeze(ROWS, 3), ValueError, "no such place"),
        (lambda: views.unsqueeze(ROWS, -4), ValueError, "no such place"),
        (lambda: views.unsqueeze(ROWS, True), TypeError, "no int"),
        (lambda: views.transpose(ROWS, 0, 2), ValueError, "no such place"),
        (lambda: views.transpose(ROWS, "0", 1), TypeError, "no int"),
        (lambda: views.permute(ROWS, 0), ValueError, "must reorder every layout mode"),
        (lambda: views.permute(ROWS, 0, -2), ValueError, "must reorder every layout mode"),
        (lambda: views.permute(ROWS, 0, 1.0), TypeError, "no int"),
        (lambda: views.flatten_modes(ROWS, 1, 1), ValueError, "at least one"),
        (lambda: views.flatten_modes(ROWS, 0, 3), ValueError, "there are 2 modes"),
        (lambda: views.flatten_modes(ROWS, -1, 2), ValueError, "there are 2 modes"),
        (lambda: views.flatten_modes(ROWS, 0, None), TypeError, "no int"),
    ],
)
def test_view_at_a_bad_mode_is_refused(view: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        view()


def test_views_cost_does_not_depend_on_extents() -> None:
    huge = Layout.column_major(10**6, 10**6)
    assert views.reshape(huge, (10**3, -1, 10**3))[1].stride == Stride(1, 10**3, 10**9)
    assert views.as_strided(huge, (10**5, 10**5), (10, 10**6), 7)[0] == 7
