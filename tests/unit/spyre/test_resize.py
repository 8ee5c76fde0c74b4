"""`_resize_device_layout`: facts-compiler.md sections e and h4, and the fresh layout of the new size as the measure."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strideweave.spyre import SpyreTensorLayout
from strideweave.spyre.resize import resize_device_layout
from strideweave.spyre.sticks import DataFormat
from strideweave.spyre.tensor_layout import ElementArrangement

F16 = torch.float16


def contiguous(size):
    return tuple(math.prod(size[k + 1 :]) for k in range(len(size)))


def without_dims(layout):
    """The same layout as one that does not know its host dims, as views leave them."""
    return SpyreTensorLayout(layout.device_size, layout.stride_map, layout.device_dtype, layout.element_arrangement)


class TestRowsOfTheFacts:
    @pytest.mark.parametrize("known", [True, False])
    def test_halved_along_the_sticks(self, known):
        layout = SpyreTensorLayout((256, 128), (128, 1), F16, [1, 0])
        layout = layout if known else without_dims(layout)
        resized = resize_device_layout(layout, (256, 128), (256, 64))
        assert (resized.device_size, resized.stride_map) == ((4, 64, 64), (4096, 1, 64))
        assert resized == SpyreTensorLayout((256, 64), (64, 1), F16, [1, 0])

    @pytest.mark.parametrize(("old", "new"), [((2, 128), (1, 128)), ((1, 128), (4, 128))])
    def test_to_one_row_and_from_one(self, old, new):
        assert resize_device_layout(SpyreTensorLayout(old, F16), old, new) == SpyreTensorLayout(new, F16)
        inferred = resize_device_layout(without_dims(SpyreTensorLayout(old, F16)), old, new)
        assert inferred.device_size == SpyreTensorLayout(new, F16).device_size

    def test_scores_of_attention_need_the_stick_dim_or_the_dim_map(self):
        size = (1, 32, 512, 512)
        layout = SpyreTensorLayout((32, 512, 8, 1, 64), (512, 16384, 64, -1, 1), DataFormat.SEN169_FP16)
        with pytest.raises(RuntimeError, match="stick_host_dim"):
            resize_device_layout(layout, size, (1, 16, 512, 512))
        mapped = SpyreTensorLayout(
            layout.device_size, layout.stride_map, layout.device_dtype, ElementArrangement.STANDARD, (1, 2, 3, 0, 3)
        )
        assert resize_device_layout(mapped, size, (1, 16, 512, 512)).device_size == (16, 512, 8, 1, 64)
        assert resize_device_layout(mapped, size, (1, 32, 512, 256)).device_size == (32, 512, 4, 1, 64)
        assert resize_device_layout(layout, size, (1, 16, 512, 512), 3).device_size == (16, 512, 8, 1, 64)

    def test_square_in_permuted_order_is_ambiguous_without_dims(self):
        layout = SpyreTensorLayout((64, 64, 64), (4096, 64, 1), F16, [2, 0, 1])
        with pytest.raises(RuntimeError, match="Each device dim must belong to one host dim"):
            resize_device_layout(
                SpyreTensorLayout(layout.device_size, (7, 5, 3, 1), layout.device_dtype), (64,) * 3, (64, 64, 32)
            )
        assert resize_device_layout(layout, (64,) * 3, (64, 64, 32)).dim_map == layout.dim_map

    def test_arrangement_and_dtype_are_kept(self):
        layout = SpyreTensorLayout((64, 128), (128, 1), F16, [0, 1], ElementArrangement.QFP8CH)
        resized = resize_device_layout(layout, (64, 128), (32, 128))
        assert resized.element_arrangement is ElementArrangement.QFP8CH
        assert resized.device_dtype is DataFormat.SEN169_FP16

    def test_other_rank_is_refused(self):
        with pytest.raises(ValueError, match="ranks differ"):
            resize_device_layout(SpyreTensorLayout((64, 128), F16), (64, 128), (64,))


@st.composite
def resizes(draw):
    rank = draw(st.integers(1, 4))
    old = tuple(draw(st.integers(1, 200)) for _ in range(rank))
    new = tuple(draw(st.one_of(st.just(n), st.integers(1, 200))) for n in old)
    order = draw(st.permutations(range(rank)))
    dtype = draw(st.sampled_from([torch.float16, torch.float32, torch.int64, torch.int8, torch.bool]))
    return old, new, tuple(order), dtype


@given(resizes())
@settings(max_examples=300, deadline=None)
def test_resized_is_the_fresh_layout_of_the_new_size(case):
    old, new, order, dtype = case
    layout = SpyreTensorLayout(old, contiguous(old), dtype, order)
    fresh = SpyreTensorLayout(new, contiguous(new), dtype, order)
    resized = resize_device_layout(layout, old, new)
    assert resized.device_size == fresh.device_size
    assert resized.dim_map == fresh.dim_map
    # A tile count of 1 keeps whatever stride it had: it is never stepped.
    for extent, step, wanted in zip(resized.device_size, resized.stride_map, fresh.stride_map, strict=True):
        assert step == wanted or extent == 1


@given(resizes())
@settings(max_examples=300, deadline=None)
def test_inferred_dims_give_the_same_or_are_refused(case):
    old, new, order, dtype = case
    assume(old[order[-1]] > 1)  # sticks along a dim of 1 look like no sticks at all
    layout = SpyreTensorLayout(old, contiguous(old), dtype, order)
    try:
        resized = resize_device_layout(without_dims(layout), old, new)
    except RuntimeError:
        return
    shrunk = resize_device_layout(layout, old, new)
    assert math.prod(resized.device_size) == math.prod(shrunk.device_size)
