"""Layouts of the card: facts-compiler.md section a, row by row, and what a layout says of its elements."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest
import torch

from strideweave.spyre import SpyreTensorLayout
from strideweave.spyre.sticks import STICK_NBYTES, DataFormat, format_of, host_step
from strideweave.spyre.tensor_layout import ElementArrangement

F16, F32 = torch.float16, torch.float32
MIB = 2**20


class TestSticks:
    @pytest.mark.parametrize(
        ("dtype", "form", "elems"),
        [
            (torch.float16, DataFormat.SEN169_FP16, 64),
            (torch.bfloat16, DataFormat.SEN169_FP16, 64),
            (torch.bool, DataFormat.SEN169_FP16, 64),
            (torch.float32, DataFormat.IEEE_FP32, 32),
            (torch.int32, DataFormat.IEEE_INT32, 32),
            (torch.int64, DataFormat.IEEE_INT64, 16),
            (torch.int8, DataFormat.SENINT8, 128),
            (torch.float8_e4m3fn, DataFormat.SEN143_FP8, 128),
        ],
    )
    def test_elements_per_stick(self, dtype, form, elems):
        assert format_of(dtype) is form
        assert form.elems_per_stick() == elems
        assert elems * form.itemsize == STICK_NBYTES

    def test_bool_takes_two_bytes(self):
        assert host_step(torch.bool) == 2
        assert host_step(torch.float16) == 1

    def test_what_is_no_dtype_is_refused(self):
        with pytest.raises(TypeError, match="no torch dtype"):
            format_of("float16")


ROWS = [
    ((128,), F16, [2, 64], [64, 1], 256),
    ((1024, 256), F16, [4, 1024, 64], [64, 256, 1], 524_288),
    ((5, 100, 150), F16, [100, 3, 5, 64], [150, 64, 15000, 1], 100 * 3 * 5 * 128),
    ((1, 8195, 256, 64), F16, [8195, 256, 1, 1, 64], [16384, 64, 64, -1, 1], 8195 * 256 * 128),
    ((98000, 4096), F16, [64, 98000, 64], [64, 4096, 1], 64 * 98000 * 128),
    ((98000, 4096), F32, [128, 98000, 32], [32, 4096, 1], 128 * 98000 * 128),
    (
        (2, 2, 257, 64, 64, 128),
        F16,
        [2, 257, 64, 64, 2, 2, 64],
        [134742016, 524288, 8192, 128, 64, 269484032, 1],
        2 * 257 * 64 * 64 * 2 * 2 * 128,
    ),
]


class TestGenericStickLayout:
    @pytest.mark.parametrize(("size", "dtype", "device_size", "stride_map", "nbytes"), ROWS)
    def test_rows_of_the_facts(self, size, dtype, device_size, stride_map, nbytes):
        layout = SpyreTensorLayout(size, dtype)
        assert list(layout.device_size) == device_size
        assert list(layout.stride_map) == stride_map
        assert layout.nbytes == nbytes

    def test_sizes_that_the_facts_give_in_mib(self):
        assert round(SpyreTensorLayout((1, 8195, 256, 64), F16).nbytes / MIB, 2) == 256.09
        assert round(SpyreTensorLayout((98000, 4096), F16).nbytes / MIB, 1) == 765.6
        assert round(SpyreTensorLayout((98000, 4096), F32).nbytes / MIB) == 1531
        assert SpyreTensorLayout((4096, 4096, 4096, 64), F16).nbytes == 8 * 2**40
        assert SpyreTensorLayout((4096, 4096, 4096, 64), F16).device_size == (4096, 4096, 1, 4096, 64)

    def test_sticks_along_the_first_dim(self):
        layout = SpyreTensorLayout((1024, 256), (256, 1), F16, [1, 0])
        assert layout.device_size == (16, 256, 64)
        assert layout.stride_map == (16384, 1, 256)

    def test_no_dims(self):
        layout = SpyreTensorLayout((), F16)
        assert (layout.device_size, layout.stride_map) == ((1, 64), (-1, -1))

    def test_sparse_has_one_element_per_stick(self):
        layout = SpyreTensorLayout((10, 20), (20, 1), F16, [0, 1, -1])
        assert layout.device_size[-1] == 64
        assert layout.stride_map[-1] == -1
        assert math.prod(layout.device_size[:-1]) == 200

    def test_most_dims(self):
        SpyreTensorLayout((2,) * 6, F16)
        SpyreTensorLayout((2,) * 6, (32, 16, 8, 4, 2, 1), F16, [0, 1, 2, 3, 4, 5, -1])
        with pytest.raises(ValueError, match="at most 6"):
            SpyreTensorLayout((2,) * 7, F16)

    def test_last_host_dim_of_one_inflates_64_fold(self):
        assert SpyreTensorLayout((1000, 1), F16).nbytes == 64 * 1000 * 2

    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    @pytest.mark.parametrize("dtype", [F16, F32, torch.int64, torch.bool])
    def test_every_element_has_a_place_of_its_own_where_the_rule_says(self, order, dtype):
        size = (3, 70, 5)
        strides = (350, 5, 1)
        layout = SpyreTensorLayout(size, strides, dtype, order)
        eps = layout.elems_per_stick
        seen = {}
        for coordinates in itertools.product(*map(range, layout.device_size)):
            host = sum(c * step for c, step in zip(coordinates, layout.stride_map, strict=True) if step != -1)
            tiles = max(k for k in range(len(order)) if layout.dim_map[k] == order[-1])
            if coordinates[tiles] * eps + coordinates[-1] < size[order[-1]]:
                place = sum(c * s for c, s in zip(coordinates, layout.device_strides, strict=True))
                seen.setdefault(host, []).append(place)
        assert sorted(seen) == list(range(1050))
        assert all(len(places) == 1 for places in seen.values())


class TestExplicitLayout:
    def test_says_it_all(self):
        layout = SpyreTensorLayout((4, 1024, 64), (64, 256, 1), DataFormat.SEN169_FP16)
        assert layout == SpyreTensorLayout((1024, 256), F16)
        assert layout.dim_map is None
        assert SpyreTensorLayout((1024, 256), F16).dim_map == (1, 0, 1)

    def test_arrangement_is_kept_and_counts(self):
        plain = SpyreTensorLayout((64, 64), (64, 1), F16, [0, 1])
        other = SpyreTensorLayout((64, 64), (64, 1), F16, [0, 1], ElementArrangement.DL16_TO_FP32)
        assert plain != other
        assert other.element_arrangement is ElementArrangement.DL16_TO_FP32

    def test_text_reads_back(self):
        for layout in (
            SpyreTensorLayout((5, 100, 150), F16),
            SpyreTensorLayout((2, 64), (64, 1), DataFormat.SEN169_FP16),
        ):
            names = {
                "SpyreTensorLayout": SpyreTensorLayout,
                "DataFormat": DataFormat,
                "ElementArrangement": ElementArrangement,
            }
            assert eval(repr(layout), names) == layout
            assert pickle.loads(pickle.dumps(layout)) == layout

    def test_is_a_hierarchical_layout_of_the_project(self):
        layout = SpyreTensorLayout((5, 100, 150), F16)
        assert layout.layout.size == layout.elems
        for coordinates in itertools.product(range(0, 100, 33), range(3), range(5), range(0, 64, 21)):
            assert layout.layout(coordinates) == sum(
                c * s for c, s in zip(coordinates, layout.device_strides, strict=True)
            )

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (((4, 32), (1, 1), DataFormat.SEN169_FP16), ValueError, "a stick holds 64"),
            (((4, 64), (1,), DataFormat.SEN169_FP16), ValueError, "one entry per"),
            (((4, 64), (64,), F16, (0, 1)), ValueError, "one stride per dim"),
            (((4, 64), (64, 1), F16, (0, 0)), ValueError, "every dim"),
            (((4, -1), F16), ValueError, "negative"),
            (((4, True), F16), TypeError, "ints"),
            (("44", F16), TypeError, "sequence of ints"),
            (((4, 64), "float16"), TypeError, "it takes"),
        ],
    )
    def test_bad_arguments_are_refused(self, arguments, error, message):
        with pytest.raises(error, match=message):
            SpyreTensorLayout(*arguments)

    def test_cannot_be_changed(self):
        with pytest.raises(AttributeError, match="immutable"):
            SpyreTensorLayout((4, 64), F16).device_size = (1,)
