"""Storage dtypes: what one element is, how large, and what torch and safetensors call it."""

from strideweave.dtype.dtype import DType, StorageDType

__all__ = ["DType", "StorageDType"]
