"""How far one step of every mode moves the index."""

from __future__ import annotations

from strideweave.layout.nested import NestedInts


class Stride(NestedInts):
    """The step of every mode, nested like the shape it goes with; 0 repeats the same index.

    Units: elements. Errors: TypeError for what is no integer; ValueError for a negative one. Immutable.

    >>> from strideweave.layout import Stride
    >>> Stride(1, (4, 2))
    Stride(1, (4, 2))
    """

    __slots__ = ()

    _least = 0
    _rule = "Stride value must not be negative"
