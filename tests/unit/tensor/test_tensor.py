"""Tensor: elements, views and bridges, against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strideweave import CPU, DType, FileBacked, Layout, Shape, Stride, Tensor, TiledEvictable, from_torch
from strideweave.dtype import StorageDType

NESTED = Layout(Shape((2, 3), 4), Stride((1, 8), 2))


def counted(layout: Layout, offset: int = 0) -> Tensor:
    return Tensor(CPU.wrap(torch.arange(float(offset + layout.cosize))), offset, layout)


# -- making one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((torch.ones(3), 0, Layout.column_major(3)), TypeError, "takes a Carrier"),
        ((CPU(3), 0.0, Layout.column_major(3)), TypeError, "offset must be an integer"),
        ((CPU(3), True, Layout.column_major(3)), TypeError, "offset must be an integer"),
        ((CPU(3), 0, (3,)), TypeError, "takes a Layout"),
        ((CPU(3), -1, Layout.column_major(3)), ValueError, "non-negative"),
        ((CPU(3), 1, Layout.column_major(3)), ValueError, "exceeds carrier size"),
        ((CPU(3), 0, Layout(Shape(2), Stride(3))), ValueError, "exceeds carrier size"),
    ],
)
def test_tensor_of_wrong_parts_is_refused(arguments, error: type[Exception], words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        Tensor(*arguments)


def test_tensor_is_immutable_and_tells_its_facts() -> None:
    tensor = counted(Layout.row_major(2, 3), 4)
    assert (tensor.size(), tensor.dtype(), tensor.offset, tensor.shape) == (6, DType.Float32, 4, Shape(2, 3))
    assert tensor.carrier_type() is CPU
    assert tensor.is_mutable()
    for name in ("offset", "layout", "carrier", "anything"):
        with pytest.raises(AttributeError):
            setattr(tensor, name, 1)


# -- elements --------------------------------------------------------------------------------------------------------


def test_tensor_elements_follow_layout_and_offset() -> None:
    tensor = counted(Layout.row_major(2, 3), 4)
    for i in range(2):
        for j in range(3):
            assert tensor[i, j] == 4 + 3 * i + j
            assert tensor[i + 2 * j] == 4 + 3 * i + j


def test_tensor_nested_coordinates_and_ordinals_agree() -> None:
    tensor = counted(NESTED)
    for i in range(2):
        for k in range(3):
            for j in range(4):
                assert tensor[(i, k), j] == i + 8 * k + 2 * j
                assert tensor[i + 2 * k, j] == tensor[i + 2 * k + 6 * j] == i + 8 * k + 2 * j


def test_tensor_write_reaches_the_carrier_and_counts_once() -> None:
    tensor = counted(Layout.row_major(2, 3))
    tensor[1, 0] = -1.0
    assert tensor.carrier[3] == -1.0
    assert tensor.version == 1
    with pytest.raises(TypeError, match="slice"):
        tensor[0, :] = 1.0
    assert tensor.version == 1


@pytest.mark.parametrize("key", [6, -1, (2, 0), (0, 3), (0, -1)])
def test_tensor_key_outside_is_refused(key: object) -> None:
    with pytest.raises(ValueError, match="not in domain"):
        counted(Layout.row_major(2, 3))[key]  # type: ignore[index]


@pytest.mark.parametrize("key", [1.0, True, "0", None])
def test_tensor_key_of_another_type_is_refused(key: object) -> None:
    with pytest.raises(TypeError):
        counted(Layout.row_major(2, 3))[key]  # type: ignore[index]


# -- views -----------------------------------------------------------------------------------------------------------


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    chosen: list[int | slice] = []
    for extent in shape:
        if draw(st.booleans()):
            chosen.append(draw(st.integers(0, extent - 1)))
            continue
        start = draw(st.integers(0, extent - 1))
        step = draw(st.integers(1, extent - start))
        count = draw(st.integers(1, (extent - start) // step))
        chosen.append(slice(start, start + step * count, step))
    if not any(isinstance(key, slice) for key in chosen):
        chosen[0] = slice(None)
    return tuple(chosen)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans(), st.data())
def test_view_equals_numpy_and_copies_nothing(extents: list[int], row: bool, data: st.DataObject) -> None:
    shape = tuple(extents)
    layout = Layout.row_major(*shape) if row else Layout.column_major(*shape)
    tensor = counted(layout, data.draw(st.integers(0, 3)))
    key = data.draw(keys(shape))
    view = tensor[key if len(key) > 1 else key[0]]
    assert isinstance(view, Tensor)
    assert view.carrier is tensor.carrier
    assert np.array_equal(view.torch().numpy(), tensor.torch().numpy()[key])
    assert tensor.version == 0


def test_view_of_a_view_and_writes_through_it() -> None:
    tensor = counted(Layout.row_major(4, 6))
    view = tensor[1:3, 0:6:2]
    assert isinstance(view, Tensor)
    inner = view[1, :]
    assert isinstance(inner, Tensor)
    inner[2] = -1.0
    assert tensor[2, 4] == -1.0
    assert tensor.version == view.version == 1


def test_view_keeps_nested_modes_whole() -> None:
    view = counted(NESTED)[:, 3]
    assert isinstance(view, Tensor)
    assert view.shape == Shape((2, 3)) or view.layout.leaves() == ((2, 1), (3, 8))
    assert view.torch().tolist() == [[6 + i + 8 * k for k in range(3)] for i in range(2)]


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (slice(0, 1), ValueError, "one key per top-level mode"),
        ((slice(None), 0, 0), ValueError, "one key per top-level mode"),
        ((slice(None), 4), ValueError, "View integer key is out of domain"),
        ((slice(None), -1), ValueError, "View integer key is out of domain"),
        ((slice(None), slice(2, 2)), ValueError, "non-empty"),
        ((slice(None), slice(None, None, -1)), ValueError, "positive step"),
        ((slice(None), slice(0, 3, 2)), ValueError, "divisible by its step"),
        ((slice(0, 2), 0), ValueError, "whole slices are supported for non-leaf"),
        ((slice(None), 1.0), TypeError, "int or a slice"),
        ((slice(None), True), TypeError, "int or a slice"),
    ],
)
def test_view_with_a_bad_key_is_refused(key: object, error: type[Exception], words: str) -> None:
    tensor = counted(NESTED)
    with pytest.raises(error, match=words):
        tensor[key]  # type: ignore[index]


# -- torch -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[1:, ::2],
        lambda x: x[:, 1],
        lambda x: x[2],
        lambda x: x.T[1:3],
        lambda x: x.reshape(2, 2, 6).permute(2, 0, 1),
        lambda x: x[0, 0],
        lambda x: x[:1].expand(3, 6),
        lambda x: x.unfold(1, 3, 1),
    ],
    ids=["whole", "transposed", "strided", "column", "row", "both", "permuted", "scalar", "broadcast", "overlapping"],
)
def test_from_torch_shares_memory_and_keeps_shape_and_strides(make) -> None:  # type: ignore[no-untyped-def]
    base = torch.arange(24.0).reshape(4, 6)
    source = make(base)
    tensor = from_torch(source)
    back = tensor.torch()
    assert back.shape == source.shape
    assert back.stride() == source.stride()
    assert back.data_ptr() == source.data_ptr()
    assert torch.equal(back, source)
    base += 100.0
    assert torch.equal(tensor.torch(), source)


def test_from_torch_write_reaches_the_source() -> None:
    source = torch.arange(6.0).reshape(2, 3).T
    tensor = from_torch(source)
    tensor[2, 1] = -1.0
    assert source[2, 1] == -1.0


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_from_torch_keeps_every_dtype(dtype: StorageDType) -> None:
    source = torch.ones(2, 3).to(dtype.torch_dtype)
    tensor = from_torch(source)
    assert tensor.dtype() is dtype
    assert torch.equal(tensor.torch().view(torch.uint8), source.view(torch.uint8))


def test_from_torch_of_a_parameter_shares_its_values_and_no_graph() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    shared = from_torch(parameter).torch()
    assert shared.data_ptr() == parameter.data_ptr()
    assert not shared.requires_grad


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (np.ones(3), TypeError, "no torch tensor"),
        ([1.0], TypeError, "no torch tensor"),
        (torch.ones(2, device="meta"), TypeError, "on meta"),
        (torch.ones(2, 2).to_sparse(), TypeError, "sparse"),
        (torch.ones(0, 3), ValueError, "at least 1"),
        (torch.ones(2, dtype=torch.complex64).conj().imag, ValueError, "resolve_neg"),
        (torch.ones(2, dtype=torch.complex64), (ValueError, LookupError, TypeError), "complex64"),
    ],
)
def test_from_torch_of_what_cannot_be_shared_is_refused(source: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        from_torch(source)  # type: ignore[arg-type]


# -- copies ----------------------------------------------------------------------------------------------------------


def test_materialize_of_memory_is_a_dense_copy() -> None:
    source = torch.arange(12.0).reshape(3, 4).T
    copy = from_torch(source).materialize()
    assert torch.equal(copy.torch(), source)
    assert copy.torch().data_ptr() != source.data_ptr()


def test_materialize_of_a_file_is_a_copy_in_memory() -> None:
    carrier = FileBacked(size=8)
    carrier._write_runs([(0, torch.arange(8.0))])
    tensor = Tensor(carrier, 2, Layout.row_major(2, 3))
    with pytest.raises(BufferError, match="materialize"):
        tensor.torch()
    copy = tensor.materialize()
    assert copy.torch().tolist() == [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]
    carrier.release()


def test_tiled_tensor_is_never_materialised_silently() -> None:
    carrier = TiledEvictable(CPU(0), FileBacked(size=8), (2,), (4,))
    tensor = Tensor(carrier, 0, Layout.column_major(8))
    with pytest.raises(BufferError, match=r"project\(\).*materialize\(\)"):
        tensor.torch()
    assert carrier.statistics().misses == 0
    assert tensor.materialize().torch().tolist() == [0.0] * 8
    carrier.release()


def test_repr_touches_no_value_and_names_the_parts() -> None:
    carrier = TiledEvictable(CPU(0), FileBacked(size=8), (2,), (4,))
    text = repr(Tensor(carrier, 0, Layout.column_major(8)))
    assert "0 of 2 tiles" in text
    assert "Float32" in text
    assert carrier.statistics().bytes_read == 0
    carrier.release()
