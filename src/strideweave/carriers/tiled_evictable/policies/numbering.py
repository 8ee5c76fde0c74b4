"""Coordinates as tile numbers, which is what an eviction order is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strideweave.carriers.tiled_evictable.selection import Coordinate


def numbers_of(coordinates: Sequence[Coordinate], grid_shape: tuple[int, ...]) -> list[int]:
    """The number of each tile in its grid, first axis fastest; all of them lie in the grid.

    >>> from strideweave.carriers.tiled_evictable.policies.numbering import numbers_of
    >>> numbers_of([(0, 0), (1, 0), (0, 1)], (2, 3))
    [0, 1, 2]
    """
    if not coordinates:
        return []
    numbers: list[int] = np.ravel_multi_index(tuple(np.asarray(coordinates).T), grid_shape, order="F").tolist()
    return numbers
