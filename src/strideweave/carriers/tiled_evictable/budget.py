"""Sizes as people write them, and the error of a budget that cannot hold what is asked."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


class BudgetExceeded(RuntimeError):
    """More tiles are needed at once than the budget has room for; nothing was changed.

    >>> import torch
    >>> import strideweave as sw
    >>> c = sw.TiledEvictable(sw.CPU(0), sw.FileBacked(size=4), (2,), (2,), budget=8)
    >>> try:
    ...     c.promote(sw.TileSet([(0,), (1,)]))
    ... except sw.BudgetExceeded as error:
    ...     print(str(error).split(":")[0])
    cannot promote 2 tiles of ...
    >>> c.release()
    """


def parse_nbytes(size: int | str) -> int:
    """The bytes of a size written as a number or with a unit: B, KB .. TB (powers of 1000), KiB .. TiB (of 1024).

    Errors: TypeError for another type; ValueError for text that is no size, or a size below 1.

    >>> parse_nbytes("1.5 GiB"), parse_nbytes("2MB"), parse_nbytes(4096)
    (1610612736, 2000000, 4096)
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"cannot read {size!r} as a size: a size is an int of bytes or text. Write one such as '2GiB'.")
    if isinstance(size, int):
        nbytes = size
    else:
        match = _SIZE.fullmatch(size)
        if match is None or (match[3] and not match[2]):
            raise ValueError(
                f"cannot read {size!r} as a size: it is no number with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB). "
                "Write one such as '2GiB'."
            )
        unit = match[2].lower()
        nbytes = int(float(match[1]) * (_BINARY[unit] if match[3] else _UNITS[unit]))
    if nbytes < 1:
        raise ValueError(
            f"cannot use {size!r} as a size: it is {nbytes} bytes. A size is at least 1 byte. Write a larger one."
        )
    return nbytes


def format_nbytes(nbytes: float) -> str:
    """A size for people, in powers of 1024 with one decimal.

    >>> format_nbytes(5308416), format_nbytes(900)
    ('5.1 MiB', '900 B')
    """
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
