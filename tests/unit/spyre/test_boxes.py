"""Views as boxes: every element of a view is at the device offset that the layout of its storage says."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strideweave.spyre.boxes import boxes
from strideweave.spyre.storage import StoredAs, contiguous_strides, is_dense, stored_as

DTYPES = (torch.float16, torch.float32, torch.bool, torch.int8, torch.int64)


def device_offset(stored: StoredAs, host_offset: int) -> int:
    """Where the element at a host offset is, dim by dim, as the layout says."""
    layout, coordinates = stored.layout, {}
    order = sorted((d for d in range(len(stored.size)) if stored.size[d] > 1), key=lambda d: -stored.strides[d])
    for d in order:
        coordinates[d], host_offset = divmod(host_offset, stored.strides[d])
    assert layout.dim_map is not None
    total, last = 0, len(layout.dim_map) - 1
    for k, d in enumerate(layout.dim_map):
        if d not in coordinates:
            continue
        at = coordinates[d]
        if d == layout.dim_map[-1]:
            at = at % layout.elems_per_stick if k == last else at // layout.elems_per_stick
        total += at * stored.device_strides[k]
    return total


def random_view(draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    rank = draw.randint(1, 4)
    small, large = (1, 2, 3, 4), (1, 2, 3, 5, 16, 32, 64, 100, 128, 150)
    size = [draw.choice(large if k >= rank - 2 else small) for k in range(rank)]
    order = list(range(rank))
    if draw.random() < 0.3:
        draw.shuffle(order)
    base = torch.empty([size[k] for k in order]).permute([order.index(k) for k in range(rank)])
    view = base
    for _ in range(draw.randint(0, 4)):
        try:
            view = _step(draw, view)
        except (RuntimeError, IndexError):
            continue
    return base, view


def _step(draw: random.Random, view: torch.Tensor) -> torch.Tensor:
    dim = draw.randrange(view.dim())
    kind = draw.choice(["slice", "step", "permute", "select", "flatten", "split", "expand", "unfold"])
    if kind in ("slice", "step"):
        start = draw.randint(0, view.shape[dim] - 1)
        end = draw.randint(start + 1, view.shape[dim])
        return view[(slice(None),) * dim + (slice(start, end, draw.choice([2, 3]) if kind == "step" else 1),)]
    if kind == "permute":
        return view.permute(draw.sample(range(view.dim()), view.dim()))
    if kind == "select":
        return view.select(dim, draw.randrange(view.shape[dim])) if view.dim() > 1 else view
    if kind == "flatten":
        return view.view(*view.shape[:-2], view.shape[-2] * view.shape[-1])
    if kind == "split":
        return view.unflatten(-1, (draw.choice([2, 4, 8]), -1))
    if kind == "expand":
        return view.unsqueeze(0).expand(3, *view.shape)
    return view.unfold(-1, draw.choice([2, 3]), draw.choice([1, 2]))


@given(st.integers(0, 2**32), st.sampled_from(DTYPES))
@settings(max_examples=300)
def test_boxes_of_a_random_view_are_its_elements(seed: int, dtype: torch.dtype) -> None:
    draw = random.Random(seed)
    base, view = random_view(draw)
    if view.numel() > 50_000:
        return
    stored = stored_as(tuple(base.shape), base.stride(), dtype)
    found = boxes(
        stored, dtype, tuple(view.shape), view.stride(), view.storage_offset(), contiguous_strides(view.shape)
    )
    if found is None:
        return
    got = torch.full((view.numel(),), -1, dtype=torch.int64)
    for box in found:
        at = torch.zeros(box.size, dtype=torch.int64) + box.device_offset
        for k, stride in enumerate(box.device_strides):
            at += torch.arange(box.size[k]).reshape([-1] + [1] * (len(box.size) - 1 - k)) * stride
        window = got.as_strided(box.size, box.host_strides, box.host_offset)
        assert (window == -1).all(), "two boxes have the same element"
        window.copy_(at)
    assert (got >= 0).all()
    want = torch.zeros(view.shape, dtype=torch.int64) + view.storage_offset()
    for k, stride in enumerate(view.stride()):
        want += torch.arange(view.shape[k]).reshape([-1] + [1] * (view.dim() - 1 - k)) * stride
    flat = want.flatten().tolist()
    for k in {0, len(flat) - 1, *(draw.randrange(len(flat)) for _ in range(40))}:
        assert device_offset(stored, flat[k]) == got[k]


@pytest.mark.parametrize(
    ("size", "view", "count"),
    [
        ((4, 128), lambda t: t, 1),
        ((4, 100), lambda t: t, 2),
        ((4, 128), lambda t: t.t(), 1),
        ((1000, 4096), lambda t: t[5], 1),
        ((1000, 4096), lambda t: t[:, 3:200], 3),
        ((2, 7, 8 * 64), lambda t: t.view(2, 7, 8, 64).transpose(1, 2), 1),
        ((2, 7, 8 * 16), lambda t: t.view(2, 7, 8, 16).transpose(1, 2), 1),
        ((2, 7, 64), lambda t: t.view(14, 64), 1),
    ],
)
def test_common_views_are_few_boxes(size: tuple[int, ...], view: object, count: int) -> None:
    base = torch.empty(size, device="meta")
    seen = view(base)  # type: ignore[operator]
    stored = stored_as(size, base.stride(), torch.float16)
    found = boxes(stored, torch.float16, tuple(seen.shape), seen.stride(), seen.storage_offset(), seen.stride())
    assert found is not None
    assert len(found) == count
    assert sum(math.prod(box.size) for box in found) == seen.numel()


def test_narrower_dtype_of_a_stored_one_is_boxes_and_a_wider_one_is_not() -> None:
    stored = stored_as((4, 100), (100, 1), torch.complex64)
    real = boxes(stored, torch.float32, (4, 100, 2), (200, 2, 1), 0, (200, 2, 1))
    assert real is not None
    assert sum(math.prod(box.size) for box in real) == 800
    assert boxes(stored_as((8,), (1,), torch.int8), torch.int32, (2,), (1,), 0, (1,)) is None


def test_stored_with_gaps_overlaps_or_many_dims_is_flat() -> None:
    assert stored_as((3, 4), (10, 1), torch.float16).size == (24,)
    assert stored_as((3, 4), (0, 1), torch.float16).size == (4,)
    assert stored_as((1,) * 6 + (5,), (5,) * 6 + (1,), torch.float16).size == (5,)
    assert stored_as((0, 4), (4, 1), torch.float16).nbytes == 0


def test_is_dense_means_no_gap_and_no_overlap() -> None:
    assert is_dense((2, 3, 1), (1, 2, 77))
    assert not is_dense((2, 3), (0, 1))
    assert not is_dense((2, 3), (4, 1))
    assert is_dense((), ())
