"""How a tile store looks on disk: a header, two marks, four records a tile, and slots of data.

    header     what is stored, in whole pages, written once
    marks      one page, two copies of 'this is on the disk', written in turn
    records    four places a tile of 32 bytes each, up to a whole page
    slots      one tile each, in whole pages; a ragged tile begins a slot of the same size

Every header, mark and record carries its own checksum, so that one written in part is none.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout, Shape, Stride

MAGIC = b"SWTILES\0"
VERSION = 1
"""Of a store whose tiles are all whole, as every store was before there were others."""
RAGGED_VERSION = 2
"""Of a store with ragged tiles: its header names the logical shape, and ragged tiles have less data than their slot."""
PAGE_NBYTES = 4096
PLACES = 4
"""Records a tile may have at once: on the disk, on its way there, current, and the one being written."""
RECORD_NBYTES = 32
ROW_NBYTES = PLACES * RECORD_NBYTES
NO_SLOT = 2**32 - 1
"""The slot of a tile of zeros, which needs none."""

ReadBytes: TypeAlias = Callable[[int, int], bytes]

_HEADER = struct.Struct("<8sIIII")  # magic, version, bytes of the whole header, bytes of its text, checksum
_RECORD = struct.Struct("<IIQQI")  # ordinal, slot, generation, epoch, checksum of the data; then its own checksum
_MARK = struct.Struct("<QII")  # epoch, count and digest of the records on the disk; then its own checksum
_CHECKSUM = struct.Struct("<I")
MARK_NBYTES = _MARK.size + _CHECKSUM.size


def whole_pages(nbytes: int) -> int:
    """`nbytes` up to whole pages.

    >>> whole_pages(1), whole_pages(4096)
    (4096, 4096)
    """
    return -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES


@dataclass(frozen=True, slots=True)
class StoreHeader:
    """What a tile store holds, and so where everything in it lies. Units: bytes.

    >>> from strideweave import DType
    >>> from strideweave.carriers.tiled_evictable.geometry import Geometry
    >>> header = StoreHeader(DType.Float32, Geometry.make((4,), (8,)))
    >>> header.tile_nbytes, header.records_nbytes, header.slot_offset(0)
    (32, 4096, 12288)
    """

    dtype: StorageDType
    geometry: Geometry

    @property
    def tile_nbytes(self) -> int:
        """How long the data of a whole tile is."""
        return self.geometry.tile_elems * self.dtype.itemsize

    def data_nbytes(self, ordinal: int) -> int:
        """How long the data of a tile is."""
        return self.geometry.elems_of(ordinal) * self.dtype.itemsize

    @property
    def version(self) -> int:
        """Of the format: the oldest that can say what the store holds."""
        return RAGGED_VERSION if self.geometry.is_ragged else VERSION

    @property
    def nbytes(self) -> int:
        """How long the header is; the marks come next."""
        return whole_pages(_HEADER.size + len(self._text()))

    @property
    def records_offset(self) -> int:
        """Where the records begin."""
        return self.nbytes + PAGE_NBYTES

    @property
    def records_nbytes(self) -> int:
        """How much room the records take."""
        return whole_pages(self.geometry.tiles * ROW_NBYTES)

    def mark_offset(self, copy: int) -> int:
        """Where a copy of the mark is: never in the same sector as the other."""
        return self.nbytes + copy * (PAGE_NBYTES // 2)

    def record_offset(self, ordinal: int, place: int) -> int:
        """Where a record of a tile is."""
        return self.records_offset + ordinal * ROW_NBYTES + place * RECORD_NBYTES

    def slot_offset(self, slot: int) -> int:
        """Where the data in a slot begins."""
        return self.records_offset + self.records_nbytes + slot * whole_pages(self.tile_nbytes)

    def encode(self) -> bytes:
        """The header as it stands at the beginning of the file."""
        text = self._text()
        checksum = zlib.crc32(_HEADER.pack(MAGIC, self.version, self.nbytes, len(text), 0) + text)
        return (_HEADER.pack(MAGIC, self.version, self.nbytes, len(text), checksum) + text).ljust(self.nbytes, b"\0")

    def _text(self) -> bytes:
        layout = self.geometry.layout
        facts: dict[str, Any] = {
            "dtype": self.dtype.name,
            "grid_shape": self.geometry.grid_shape,
            "tile_shape": self.geometry.tile_shape,
            "shape": layout.shape._items,
            "stride": layout.stride._items,
        }
        if self.geometry.is_ragged:
            facts["logical_shape"] = self.geometry.logical_shape
        return json.dumps(facts).encode()

    @classmethod
    def decode(cls, read: ReadBytes, file_nbytes: int, path: str) -> StoreHeader:
        """The header of the file that `read(offset, nbytes)` reads. Errors: ValueError for what is no tile store."""

        def refuse(offset: int, facts: str, rule: str, advice: str) -> ValueError:
            return ValueError(f"cannot open {path!r} as a tile store: at byte {offset} {facts}. {rule} {advice}")

        if file_nbytes < _HEADER.size:
            raise refuse(
                0,
                f"it has {file_nbytes} bytes of the {_HEADER.size} that a header begins with",
                "Nothing was ever stored in it, or it was cut.",
                "Name the file that a TiledEvictable kept its tiles in.",
            )
        magic, version, nbytes, text_nbytes, checksum = _HEADER.unpack(read(0, _HEADER.size))
        if magic != MAGIC:
            raise refuse(
                0,
                f"it begins with {magic!r}",
                f"A tile store begins with the magic {MAGIC!r}.",
                "Name the file that a TiledEvictable kept its tiles in; FileBacked.open reads plain values.",
            )
        if version not in (VERSION, RAGGED_VERSION):
            raise refuse(
                8,
                f"its version is {version}",
                f"This program reads version {VERSION} and {RAGGED_VERSION}.",
                "Open it with the program that wrote it.",
            )
        is_whole = nbytes == whole_pages(_HEADER.size + text_nbytes)
        if not is_whole or nbytes > file_nbytes:
            raise refuse(
                12,
                f"the header has {nbytes} bytes with {text_nbytes} of text, and the file {file_nbytes}",
                "A header is whole pages inside the file: it is damaged or cut.",
                "Restore the file.",
            )
        text = read(_HEADER.size, text_nbytes)
        found = zlib.crc32(_HEADER.pack(magic, version, nbytes, text_nbytes, 0) + text)
        if found != checksum:
            raise refuse(
                20,
                f"the header's checksum is {checksum:#010x} and its bytes have {found:#010x}",
                "They must be equal: it is damaged, or was never finished.",
                "Restore the file, or remove it if nothing was stored yet.",
            )
        try:
            header = cls._from_facts(json.loads(text))
        except (ValueError, TypeError, KeyError, LookupError) as e:
            raise refuse(_HEADER.size, f"the header cannot be understood ({e})", "It names a dtype, a grid, a tile "
                         "and a layout.", "Restore the file.") from e  # fmt: skip
        if file_nbytes < header.slot_offset(0):
            raise refuse(
                file_nbytes,
                f"the file ends, and its {header.geometry.tiles} tiles have records up to byte {header.slot_offset(0)}",
                "Every record must be there: it was cut.",
                "Restore the file.",
            )
        return header

    @classmethod
    def _from_facts(cls, facts: dict[str, Any]) -> StoreHeader:
        layout = Layout(Shape(*_nested(facts["shape"])), Stride(*_nested(facts["stride"])))
        geometry = Geometry.make(facts["grid_shape"], facts["tile_shape"], layout, facts.get("logical_shape"))
        return cls(DType.from_name(facts["dtype"]), geometry)


@dataclass(frozen=True, slots=True)
class Record:
    """One version of one tile."""

    ordinal: int
    """The number of the tile."""
    slot: int
    """Where its data is; NO_SLOT for zeros."""
    generation: int
    """Larger than that of every record written before."""
    epoch: int
    """How many times the store had been told to reach the disk."""
    data_checksum: int
    """CRC-32 of the data."""
    place: int
    """Which of the tile's places it is at; not written."""

    @property
    def is_zero(self) -> bool:
        """Whether the tile is zeros."""
        return self.slot == NO_SLOT

    @property
    def checksum(self) -> int:
        """CRC-32 of what is written."""
        return zlib.crc32(self._body())

    def encode(self) -> bytes:
        """The record as it stands in the file."""
        body = self._body()
        return body + _CHECKSUM.pack(zlib.crc32(body))

    def _body(self) -> bytes:
        return _RECORD.pack(self.ordinal, self.slot, self.generation, self.epoch, self.data_checksum)

    @classmethod
    def decode_row(cls, row: bytes, ordinal: int) -> list[Record]:
        """The whole records of a tile, the newest first."""
        found = []
        for place in range(PLACES):
            begin = place * RECORD_NBYTES
            body = row[begin : begin + _RECORD.size]
            (checksum,) = _CHECKSUM.unpack_from(row, begin + _RECORD.size)
            if checksum == zlib.crc32(body):
                number, slot, generation, epoch, data_checksum = _RECORD.unpack(body)
                record = cls(number, slot, generation, epoch, data_checksum, place)
                if record.ordinal == ordinal:
                    found.append(record)
        return sorted(found, key=lambda record: -record.generation)


@dataclass(frozen=True, slots=True)
class Mark:
    """What is known to be on the disk: all records up to an epoch, how many tiles these are, and which."""

    epoch: int = 0
    count: int = 0
    digest: int = 0
    """The exclusive or of the checksums of one record a tile: the newest that is on the disk."""

    def encode(self) -> bytes:
        """The mark as it stands in the file."""
        body = _MARK.pack(self.epoch, self.count, self.digest)
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, data: bytes) -> Mark | None:
        """The mark in these bytes; None when it is not whole."""
        body = data[: _MARK.size]
        (checksum,) = _CHECKSUM.unpack_from(data, _MARK.size)
        return cls(*_MARK.unpack(body)) if checksum == zlib.crc32(body) else None


def _nested(items: list[Any]) -> tuple[Any, ...]:
    return tuple(_nested(item) if isinstance(item, list) else item for item in items)
