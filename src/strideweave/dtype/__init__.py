"""Storage dtypes: what one element is, how large, and what torch and safetensors call it."""

from strideweave.dtype.dtype import DType, DTypeCategory, StorageDType

__all__ = ["DType", "DTypeCategory", "StorageDType"]
