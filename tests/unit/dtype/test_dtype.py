"""Storage dtypes are singletons that agree with torch and with safetensors."""

from __future__ import annotations

import copy
import json
import pickle
import struct

import pytest
import safetensors.torch
import torch

from strideweave.dtype import DType, StorageDType

EVERY = pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)


@EVERY
def test_dtype_copied_and_pickled_is_the_same_object(dtype: StorageDType) -> None:
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert eval(repr(dtype)) is dtype


@EVERY
def test_dtype_size_and_kind_are_torchs(dtype: StorageDType) -> None:
    sample = torch.zeros(1, dtype=dtype.torch_dtype)
    assert dtype.itemsize == sample.element_size()
    assert dtype.is_floating == sample.is_floating_point()
    assert DType.from_torch(sample.dtype) is dtype
    assert DType.from_name(dtype.name) is dtype


@EVERY
def test_dtype_name_in_a_header_is_safetensors(dtype: StorageDType) -> None:
    blob = safetensors.torch.save({"t": torch.zeros(2, dtype=dtype.torch_dtype)})
    (length,) = struct.unpack("<Q", blob[:8])
    assert json.loads(blob[8 : 8 + length])["t"]["dtype"] == dtype.safetensors_name


def test_dtype_unknown_is_refused_with_the_list() -> None:
    with pytest.raises(LookupError, match="BFloat16"):
        DType.from_name("Float7")
    with pytest.raises(TypeError, match="text"):
        DType.from_name(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="complex64"):
        DType.from_torch(torch.complex64)
    with pytest.raises(TypeError, match="torch dtype"):
        DType.from_torch("bfloat16")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="namespace"):
        DType()
