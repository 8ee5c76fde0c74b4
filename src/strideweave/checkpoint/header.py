"""The header of a safetensors file, read and proven before a byte of any tensor is.

Source: the safetensors format: eight bytes of little-endian header length, a JSON object, then the bytes of
the tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from strideweave.checkpoint.errors import CheckpointError, GarbledHeader, MissingShards, TruncatedShard
from strideweave.io import FileIdentity

HEADER_CAP_NBYTES = 100_000_000
"""The longest header that the format allows."""

ITEM_NBYTES: Mapping[str, int] = MappingProxyType(
    {
        "F64": 8,
        "F32": 4,
        "F16": 2,
        "BF16": 2,
        "F8_E4M3": 1,
        "F8_E5M2": 1,
        "I64": 8,
        "I32": 4,
        "I16": 2,
        "I8": 1,
        "U8": 1,
        "U16": 2,
        "U32": 4,
        "U64": 8,
        "BOOL": 1,
    }
)
"""Bytes per element of every dtype that is read here, by its name in the file."""

_LENGTH_NBYTES = 8
_EXTENT_LIMIT = 2**64


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies in its file. Units: bytes, from the first byte of the file.

    >>> TensorEntry("norm.weight", "BF16", (576,), 4096, 1152).end_nbytes
    5248
    """

    name: str
    """The tensor's name in the checkpoint."""
    dtype: str
    """The element type, as the file spells it."""
    shape: tuple[int, ...]
    """The extents, last dimension fastest; () for a scalar."""
    offset_nbytes: int
    """The first byte of the tensor."""
    nbytes: int
    """How many bytes it takes; zero is legal."""

    @property
    def end_nbytes(self) -> int:
        """The first byte after the tensor."""
        return self.offset_nbytes + self.nbytes


@dataclass(frozen=True, slots=True, repr=False)
class Header:
    """Everything that one safetensors file says about itself, proven to agree with the file's size.

    >>> from strideweave.checkpoint import Header
    >>> "entries" in Header.__dataclass_fields__
    True
    """

    path: Path
    """The file, as it was named by whoever opened it."""
    entries: Mapping[str, TensorEntry]
    """The tensors by name, in the order of their bytes; together they cover the data without a gap."""
    metadata: Mapping[str, str]
    """The free text that the writer left."""
    data_start_nbytes: int
    """The first byte after the header."""
    file_nbytes: int
    """The size of the file."""
    sha256: str
    """The hash of the bytes before the data."""
    identity: FileIdentity
    """The file that was read, as the operating system tells files apart."""

    def __repr__(self) -> str:
        return f"<Header of {self.path!s}: {len(self.entries)} tensors, {self.file_nbytes} bytes>"


@dataclass(frozen=True, slots=True)
class _Shard:
    """The file that a message is about."""

    path: Path
    ordinal: tuple[int, int]

    def __str__(self) -> str:
        return f"shard {self.ordinal[0]} of {self.ordinal[1]}, {self.path!s}"

    def garbled(self, facts: str, rule: str, advice: str = "Re-download this file.") -> GarbledHeader:
        return GarbledHeader(f"cannot read {self}: {facts}. {rule}. {advice}")

    def truncated(self, wanted: str, expected: int, actual: int) -> TruncatedShard:
        return TruncatedShard(
            f"cannot read {self}: {wanted} {expected} bytes, the file has {actual}: {expected - actual} "
            "bytes are missing. A shard that was cut short is never read. Re-download this file."
        )


def read_header(path: str | os.PathLike[str], *, ordinal: tuple[int, int] = (1, 1)) -> Header:
    """The proven header of a safetensors file; no byte of a tensor is read and nothing is written.

    `ordinal` (n of m) only names the shard in messages.

    Errors: MissingShards when there is no such file; TruncatedShard when it is shorter than it says;
    GarbledHeader when the header is not what the format allows; CheckpointError when it cannot be opened or
    has a dtype unknown here.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "model.safetensors")
    ...     text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    ...     _ = file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    ...     read_header(file).entries["a"]
    TensorEntry(name='a', dtype='F32', shape=(2,), offset_nbytes=62, nbytes=8)
    """
    shard = _Shard(Path(path), ordinal)
    with _opened(shard) as descriptor:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise CheckpointError(
                f"cannot read {shard}: it is no regular file. A shard is one file. Name a .safetensors "
                "file or its folder."
            )
        identity = FileIdentity.from_stat(facts)
        prefix = _read_exactly(descriptor, shard, _LENGTH_NBYTES, 0, facts.st_size)
        length = _header_length(shard, prefix, facts.st_size)
        text = _read_exactly(descriptor, shard, length, _LENGTH_NBYTES, facts.st_size)
    data_start_nbytes = _LENGTH_NBYTES + length
    document = _parse(shard, text)
    metadata = _metadata(shard, document.pop("__metadata__", None))
    entries = _entries(shard, document, data_start_nbytes)
    _check_cover(shard, entries, data_start_nbytes, facts.st_size)
    digest = hashlib.sha256(prefix)
    digest.update(text)
    return Header(
        path=shard.path,
        entries=MappingProxyType({entry.name: entry for entry in entries}),
        metadata=MappingProxyType(metadata),
        data_start_nbytes=data_start_nbytes,
        file_nbytes=facts.st_size,
        sha256=digest.hexdigest(),
        identity=identity,
    )


def missing_file_facts(path: Path) -> str:
    """Why a file is not there: plainly absent, or a link whose target is."""
    if path.is_symlink():
        return f"a link to {path.readlink()!s}, which does not exist"
    return "no such file"


def parse_json(text: bytes) -> Any:
    """The value of a JSON document in which no object names a key twice.

    Errors: ValueError, whatever is wrong with the text.

    >>> parse_json(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' appears twice
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_object_without_repeats, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True, slots=True)
class HeaderFingerprint:
    """Tells from an open descriptor whether the bytes before the data are still the recorded ones."""

    nbytes: int
    """How many bytes lie before the data."""
    sha256: str
    """Their hash."""

    def __call__(self, descriptor: int) -> bool:
        """Whether the file behind the descriptor still begins with those bytes."""
        digest = hashlib.sha256()
        done = 0
        while done < self.nbytes and (part := os.pread(descriptor, self.nbytes - done, done)):
            digest.update(part)
            done += len(part)
        return digest.hexdigest() == self.sha256


@contextmanager
def _opened(shard: _Shard) -> Iterator[int]:
    try:
        # O_NONBLOCK: a FIFO under this name is refused below, not waited for.
        descriptor = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise MissingShards(
            f"cannot open {shard}: {missing_file_facts(shard.path)}. Every shard must be there. Download this file."
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot open {shard}: {error.strerror} (errno {error.errno}). The file must be readable. "
            f"Check its permissions and the file system."
        ) from error
    try:
        yield descriptor
    except OSError as error:
        raise CheckpointError(
            f"cannot read {shard}: {error.strerror} (errno {error.errno}). The header must be readable. "
            f"Check the file system, then re-download this file."
        ) from error
    finally:
        os.close(descriptor)


def _read_exactly(descriptor: int, shard: _Shard, nbytes: int, offset: int, file_nbytes: int) -> bytes:
    parts: list[bytes] = []
    done = 0
    while done < nbytes:
        part = os.pread(descriptor, nbytes - done, offset + done)
        if not part:
            # Either the size said so from the start, or the file shrank since fstat.
            actual = min(file_nbytes, offset + done)
            raise shard.truncated("the length and the header alone take", offset + nbytes, actual)
        parts.append(part)
        done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _header_length(shard: _Shard, prefix: bytes, file_nbytes: int) -> int:
    length = int.from_bytes(prefix, "little")
    if prefix == b"version ":
        raise shard.garbled(
            "it is a Git LFS pointer",
            "The pointer stands for the real file",
            "Run `git lfs pull` in this folder.",
        )
    if length > HEADER_CAP_NBYTES:
        raise shard.garbled(
            f"the first 8 bytes ({prefix!r}) announce a header of {length} bytes",
            f"The format allows at most {HEADER_CAP_NBYTES}",
        )
    if length < 2:
        raise shard.garbled(
            f"the first 8 bytes ({prefix!r}) announce a header of {length} bytes",
            "The shortest header has 2 bytes",
        )
    if _LENGTH_NBYTES + length > file_nbytes:
        raise shard.truncated("the length and the header alone take", _LENGTH_NBYTES + length, file_nbytes)
    return length


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} appears twice")
            seen.add(key)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse(shard: _Shard, text: bytes) -> dict[str, Any]:
    if text[:1] != b"{":
        raise shard.garbled(f"its header begins with {text[:8]!r}", "A header begins with '{'")
    try:
        document = parse_json(text)
    except ValueError as error:
        raise shard.garbled(
            f"its header of {len(text)} bytes is not JSON: {error}", "A header is one JSON object"
        ) from None
    assert isinstance(document, dict)  # it begins with a brace
    return document


def _is_text(value: object) -> bool:
    """A str that is Unicode: JSON can spell half of a surrogate pair, which no terminal takes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _metadata(shard: _Shard, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(_is_text(k) and _is_text(v) for k, v in value.items()):
        raise shard.garbled("its __metadata__ is no map from text to text", "The format allows nothing else there")
    return value


def _entries(shard: _Shard, document: dict[str, Any], data_start_nbytes: int) -> list[TensorEntry]:
    entries = [_entry(shard, name, facts, data_start_nbytes) for name, facts in document.items()]
    # Tensors of no bytes may share an offset with each other and with the next tensor that has some.
    entries.sort(key=attrgetter("offset_nbytes", "nbytes"))
    return entries


def _entry(shard: _Shard, name: str, facts: object, data_start_nbytes: int) -> TensorEntry:
    if not _is_text(name):
        raise shard.garbled(f"the tensor name {name!r} is not Unicode text", "A name is Unicode text")
    try:
        dtype, shape, (begin, end) = facts["dtype"], facts["shape"], facts["data_offsets"]  # type: ignore[index]  # any JSON value: caught below
    except (TypeError, KeyError, ValueError):
        raise shard.garbled(
            f"the entry of tensor {name!r} lacks its dtype, shape or two data_offsets",
            "Every tensor has all three",
        ) from None
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise shard.garbled(f"tensor {name!r} has dtype {dtype!r} and shape {shape!r}", "They are a name and a list")
    item_nbytes = ITEM_NBYTES.get(dtype)
    if item_nbytes is None:
        raise CheckpointError(
            f"cannot read {shard}: tensor {name!r} has dtype {dtype!r}. Known are {' '.join(ITEM_NBYTES)}. "
            "Convert the tensor, or re-download this file when no writer could have meant that."
        )
    for number in (*shape, begin, end):
        if type(number) is not int or not 0 <= number < _EXTENT_LIMIT:
            raise shard.garbled(
                f"tensor {name!r} has shape {shape!r} and data_offsets {[begin, end]!r}",
                "Both hold whole numbers from 0 to 2**64 - 1",
            )
    expected = math.prod(shape) * item_nbytes
    if end - begin != expected:
        raise shard.garbled(
            f"tensor {name!r} of dtype {dtype} and shape {shape!r} takes {expected} bytes, its data_offsets "
            f"{[begin, end]!r} hold {end - begin}",
            "The two must agree",
        )
    return TensorEntry(name, dtype, tuple(shape), data_start_nbytes + begin, expected)


def _check_cover(shard: _Shard, entries: list[TensorEntry], data_start_nbytes: int, file_nbytes: int) -> None:
    end = data_start_nbytes
    for entry in entries:
        if entry.offset_nbytes != end:
            raise shard.garbled(
                f"tensor {entry.name!r} begins at byte {entry.offset_nbytes} of the file, the one before "
                f"it ends at {end}",
                "Tensors lie end to end, without a gap or an overlap",
            )
        end = entry.end_nbytes
    if end > file_nbytes:
        raise shard.truncated("the header and its tensors take", end, file_nbytes)
    if end < file_nbytes:
        raise shard.garbled(
            f"the header and its tensors take {end} bytes, the file has {file_nbytes}: {file_nbytes - end} "
            "bytes too many",
            "The last tensor ends where the file does",
        )
