"""The torch kernels of every operation, registered when this package is imported."""

from strideweave.operation.kernels import (
    convolution,
    indexing,
    matrix,
    normalization,
    ordering,
    pointwise,
    reduction,
    views,
)

__all__ = ["convolution", "indexing", "matrix", "normalization", "ordering", "pointwise", "reduction", "views"]
