"""What a host tensor gets on the card."""

from __future__ import annotations

import itertools

import pytest
import torch

from strideweave.spyre import SpyreTensorLayout
from strideweave.spyre.default_layout import dim_order, host_extent, is_dense, layout_for

F16 = torch.float16


@pytest.mark.parametrize("size", [(), (7,), (128,), (5, 100), (5, 100, 150), (1, 3, 1, 9), (2, 3, 4, 5, 6, 7), (4, 1)])
def test_contiguous_tensor_gets_the_generic_layout(size: tuple[int, ...]) -> None:
    made = layout_for(size, torch.empty(size, device="meta").stride(), F16)
    assert made == SpyreTensorLayout(size, F16)
    assert made.dim_map == SpyreTensorLayout(size, F16).dim_map


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_permuted_tensor_has_sticks_along_its_dim_of_stride_1(order: tuple[int, ...]) -> None:
    tensor = torch.empty(5, 100, 150).permute(order)
    made = layout_for(tensor.size(), tensor.stride(), F16)
    by_stride = tuple(sorted(range(3), key=lambda d: -tensor.stride(d)))
    assert made == SpyreTensorLayout(tuple(tensor.size()), tensor.stride(), F16, by_stride)
    assert made.device_size == (100, 3, 5, 64)
    assert made.stride_map == (150, 64, 15000, 1)


def test_channels_last_has_sticks_along_channels() -> None:
    tensor = torch.empty(2, 70, 4, 5).to(memory_format=torch.channels_last)
    made = layout_for(tensor.size(), tensor.stride(), F16)
    assert made.device_size == (4, 5, 2, 2, 64)
    assert made.dim_map == (2, 3, 1, 0, 1)


@pytest.mark.parametrize("size", [(4, 1), (1, 4), (1, 1, 1), (1, 5, 1, 6, 1), (1,)])
def test_strides_of_extent_1_do_not_matter(size: tuple[int, ...]) -> None:
    strides = torch.empty(size, device="meta").stride()
    for other in (0, 1, 7, 10**6):
        changed = tuple(other if n == 1 else s for n, s in zip(size, strides, strict=True))
        made = layout_for(size, changed, F16)
        assert made == layout_for(size, strides, F16)
        assert made.dim_map == layout_for(size, strides, F16).dim_map


@pytest.mark.parametrize(
    ("size", "strides", "extent"),
    [
        ((2, 100), (128, 1), 228),  # a gap
        ((3, 4), (1, 1), 6),  # overlaps
        ((8, 4), (0, 1), 4),  # expanded
        ((8,), (0,), 1),
        ((5,), (3,), 13),
        ((2,) * 7, (64, 32, 16, 8, 4, 2, 1), 128),  # seven dims
        ((0, 5), (5, 1), 0),
        ((5, 0), (1, 1), 0),
    ],
)
def test_what_is_no_dense_permutation_is_one_flat_dim(
    size: tuple[int, ...], strides: tuple[int, ...], extent: int
) -> None:
    assert layout_for(size, strides, F16) == SpyreTensorLayout((extent,), F16)
    assert host_extent(size, strides) == extent


def test_scalar_takes_one_stick() -> None:
    made = layout_for((), (), torch.float32)
    assert made.device_size == (1, 32)
    assert made.stride_map == (-1, -1)


def test_sequences_of_any_kind_are_taken() -> None:
    assert layout_for([2, 3], [3, 1], F16) is layout_for(torch.Size((2, 3)), (3, 1), F16)


def test_every_dtype_has_a_layout() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.complex128, torch.float8_e5m2, torch.bfloat16):
        made = layout_for((3, 200), (200, 1), dtype)
        assert made.nbytes == 3 * 128 * -(-200 // made.elems_per_stick)


def test_wrong_strides_are_refused() -> None:
    with pytest.raises(ValueError, match=r"size \(2, 3\) with strides \(1,\)"):
        layout_for((2, 3), (1,), F16)
    with pytest.raises(ValueError, match="none below 0"):
        layout_for((2,), (-1,), F16)


def test_dense_means_a_bijection_onto_offsets() -> None:
    for size in itertools.product((1, 2, 3), repeat=3):
        for strides in itertools.product((0, 1, 2, 3, 4, 6), repeat=3):
            places = sorted(
                sum(c * s for c, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, size))
            )
            assert is_dense(size, strides) == (places == list(range(len(places)))), (size, strides)


def test_dim_of_extent_1_is_no_stick_where_dims_are_permuted() -> None:
    for strides in itertools.permutations((1, 4, 12)):
        tensor = torch.empty_strided((4, 3, 2), (1, 4, 12)).permute(tuple(sorted(range(3), key=strides.__getitem__)))
        for at in range(4):
            size = (*tensor.size()[:at], 1, *tensor.size()[at:])
            steps = (*tensor.stride()[:at], 1, *tensor.stride()[at:])
            order = dim_order(size, steps)
            assert sorted(order) == [0, 1, 2, 3]
            assert order == (0, 1, 2, 3) or size[order[-1]] != 1
