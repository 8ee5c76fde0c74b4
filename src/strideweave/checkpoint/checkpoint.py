"""A checkpoint: a folder of safetensors shards and their index, or one safetensors file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeGuard, final

from strideweave.carriers import CheckpointFile, Piece
from strideweave.checkpoint.errors import CheckpointError, GarbledHeader, MissingShards, MissingTensors
from strideweave.checkpoint.header import (
    Header,
    HeaderFingerprint,
    TensorEntry,
    missing_file_facts,
    parse_json,
    read_header,
)
from strideweave.dtype import DType
from strideweave.io import SourceFile

SINGLE_NAME = "model.safetensors"
"""The file of a checkpoint that has one shard."""
INDEX_NAME = "model.safetensors.index.json"
"""The file that says which shard holds which tensor."""

_INDEX_SUFFIX = ".safetensors.index.json"
_SAMPLE = 3
"""How many tensors a message names per shard: enough to recognise layer and expert."""


@dataclass(frozen=True, slots=True)
class Located:
    """A tensor and the file that it lies in.

    >>> from strideweave.checkpoint import Located
    >>> list(Located.__dataclass_fields__)
    ['file', 'entry']
    """

    file: SourceFile
    """The shard, with the identity that it had when its header was read."""
    entry: TensorEntry
    """Where in the shard."""


@final
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Checkpoint:
    """Tensors that lie in safetensors files, found and proven but not read.

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = b'{"bias":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    ...     _ = Path(folder, "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"abc")
    ...     checkpoint = Checkpoint.open(folder)
    ...     out = bytearray(3)
    ...     checkpoint.read("bias", memoryview(out))
    >>> checkpoint.nbytes, bytes(out)
    (3, b'abc')
    """

    path: Path
    """What was opened."""
    shards: tuple[Header, ...]
    """The headers, in the order of the files' names."""
    tensors: Mapping[str, Located]
    """Every tensor by name."""
    config: dict[str, Any] | None
    """The config.json beside the weights, or None when there is none."""
    index_map: Mapping[str, str] | None
    """Which file the index names for which tensor, or None without an index."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint in a folder, of an index file, or in one .safetensors file.

        Only headers are read, and nothing is ever written. In a folder the file that config.json names as
        `transformers_weights` wins, then model.safetensors, then model.safetensors.index.json: the order of
        transformers. An index file opens by its own path too.

        Errors: CheckpointError that says what was found instead; MissingShards, with every file that is not
        there; MissingTensors, when a shard lacks what the index says it has; the errors of `read_header`.
        """
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        config = _read_config(folder / "config.json")
        weights = _choose_weights(path, config) if path.is_dir() else path
        index_map = _read_index(weights) if weights.name.endswith(_INDEX_SUFFIX) else None
        if index_map is not None:
            names = sorted(set(index_map.values()))
            _check_shards_exist(weights, names, index_map)
        elif weights.name.endswith(".safetensors"):
            names = [weights.name]
        else:
            found = "it is a file of another kind" if path.exists() else "nothing is there"
            raise CheckpointError(
                f"cannot open {path!s}: {found}. A checkpoint is a folder "
                f"of safetensors shards or one such file. {_conversion_advice([path.name])}"
            )
        base = weights.parent
        shards = tuple(read_header(base / name, ordinal=(k, len(names))) for k, name in enumerate(names, 1))
        tensors = _locate(weights, dict(zip(names, shards, strict=True)), index_map)
        return cls(path, shards, tensors, config, index_map)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors together."""
        return sum(located.entry.nbytes for located in self.tensors.values())

    def read(self, name: str, out: memoryview) -> None:
        """Fill `out` with the bytes of one tensor, from a file proven to be the one that was opened.

        Errors: MissingTensors for a name that is not here; ValueError when `out` has another size or is
        read-only; ChangedFileError when the file is no longer the one that was opened.
        """
        located = self._located(name)
        memory = out.cast("B")
        if memory.readonly or len(memory) != located.entry.nbytes:
            kind = "read-only" if memory.readonly else "writable"
            raise ValueError(
                f"cannot read {name!r} into {len(memory)} {kind} bytes: it has {located.entry.nbytes} "
                "bytes. The whole tensor is read at once. Pass writable memory of exactly that size."
            )
        located.file.check_unchanged()
        if len(memory):
            located.file.read_into([(located.entry.offset_nbytes, memory)])

    def carrier(self, name: str) -> CheckpointFile:
        """One tensor as a read-only carrier over the file where it lies, such as the secondary of a TiledEvictable.

        Shapes: flat, in the order of the file (row-major). Errors: MissingTensors for a name that is not here;
        LookupError for a dtype that has no storage.

        >>> import tempfile, torch
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file({"w": torch.arange(6.0).reshape(2, 3)}, Path(folder, "model.safetensors"))
        ...     w = Checkpoint.open(folder).carrier("w")
        ...     w.size(), w[4]
        (6, 4.0)
        """
        located = self._located(name)
        entry = located.entry
        piece = Piece(located.file, entry.offset_nbytes, entry.nbytes)
        return CheckpointFile([piece], dtype=DType.from_safetensors(entry.dtype))

    def _located(self, name: str) -> Located:
        located = self.tensors.get(name)
        if located is None:
            raise MissingTensors(
                f"cannot read {name!r} from {self.path!s}: it has {len(self.tensors)} tensors, not this "
                "one. A tensor is read by the name that it has in the file. Look at `checkpoint.tensors`."
            )
        return located

    def check_unchanged(self) -> None:
        """Every file is still the one that was opened. Errors: ChangedFileError, with the facts."""
        for file in {id(located.file): located.file for located in self.tensors.values()}.values():
            file.check_unchanged()

    def __repr__(self) -> str:
        return (
            f"<Checkpoint {self.path!s}: {len(self.shards)} shards, {len(self.tensors)} tensors, "
            f"{self.nbytes / 2**30:.2f} GiB>"
        )


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError(f"it is a {type(value).__name__}")
    except ValueError as error:
        raise CheckpointError(
            f"cannot read {path!s}: {error}. The file holds one JSON object. Re-download this file."
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path!s}: {error.strerror} (errno {error.errno}). The file must be readable. "
            f"Check the link or the permissions, or download the file."
        ) from error
    return value


def _read_config(path: Path) -> dict[str, Any] | None:
    # A dangling link is no absent file: going on without the config would be a guess.
    return _read_json_object(path) if path.is_file() or path.is_symlink() else None


def _is_inside(name: object) -> TypeGuard[str]:
    """Whether a name found in a file stays in the folder: a checkpoint makes us open nothing else."""
    if not isinstance(name, str) or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.name != ""


def _choose_weights(folder: Path, config: dict[str, Any] | None) -> Path:
    named = (config or {}).get("transformers_weights")
    if named is not None:
        if not _is_inside(named) or not named.endswith((".safetensors", _INDEX_SUFFIX)):
            raise CheckpointError(
                f"cannot open {folder!s}: config.json has transformers_weights={named!r}. It names a "
                f".safetensors file or a {_INDEX_SUFFIX[1:]} file in the folder. Correct config.json."
            )
        return folder / named
    single, index = folder / SINGLE_NAME, folder / INDEX_NAME
    has_single, has_index = (p.is_file() or p.is_symlink() for p in (single, index))
    if has_single and has_index:
        warnings.warn(
            f"{folder!s} holds both {SINGLE_NAME} and {INDEX_NAME}: {SINGLE_NAME} wins, as in "
            "transformers, and the shards of the index are not read. Remove one of the two, or name one as "
            "transformers_weights in config.json.",
            UserWarning,
            stacklevel=3,
        )
    if has_single:
        return single
    if has_index:
        return index
    raise _no_weights(folder)


def _no_weights(folder: Path) -> CheckpointError:
    names = sorted(entry.name for entry in folder.iterdir())
    weights = [n for n in names if n.endswith((".safetensors", _INDEX_SUFFIX, ".bin", ".pt", ".pth", ".gguf", ".h5"))]
    found = f"{_listed(weights)}" if weights else f"{len(names)} files, none of them weights"
    candidates = [n for n in weights if n.endswith((_INDEX_SUFFIX, ".safetensors"))]
    advice = f"Open one of these by its own path: {_listed(candidates)}." if candidates else _conversion_advice(names)
    return CheckpointError(
        f"cannot open {folder!s}: it holds {found}. A checkpoint folder has {SINGLE_NAME} or {INDEX_NAME}. {advice}"
    )


def _conversion_advice(names: list[str]) -> str:
    if any(name.endswith((".bin", ".pt", ".pth", ".gguf", ".h5")) for name in names):
        return "Load it with transformers and save it again: `save_pretrained` writes safetensors."
    return "Check the path, or download the checkpoint."


def _listed(names: list[str], *, most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _read_index(path: Path) -> Mapping[str, str]:
    if not path.is_file():
        raise MissingShards(
            f"cannot open {path!s}: {missing_file_facts(path)}. The index says where tensors are. Download this file."
        )
    weight_map = _read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"cannot read {path!s}: its weight_map is {type(weight_map).__name__}, empty or absent. It "
            "maps every tensor to a shard. Re-download this file."
        )
    # Each file once: an index of a large model names a few hundred files a hundred thousand times.
    homes: dict[str | None, str] = {}
    for name, file in weight_map.items():
        homes.setdefault(file if isinstance(file, str) else None, name)
    for home, name in homes.items():
        if not _is_inside(home) or not home.endswith(".safetensors"):
            raise CheckpointError(
                f"cannot read {path!s}: it puts tensor {name!r} in {weight_map[name]!r}. A shard is a "
                f".safetensors file below the folder of the index. Re-download this file."
            )
    return MappingProxyType(weight_map)


def _check_shards_exist(index: Path, names: list[str], index_map: Mapping[str, str]) -> None:
    missing = [name for name in names if not (index.parent / name).exists()]
    if not missing:
        return
    held: dict[str, list[str]] = {name: [] for name in missing}
    for tensor, name in index_map.items():
        if name in held:
            held[name].append(tensor)
    lines = [
        f"\n    {name} ({missing_file_facts(index.parent / name)}): holds {len(held[name])} tensors: "
        f"{_listed(held[name], most=_SAMPLE)}"
        for name in missing
    ]
    raise MissingShards(
        f"cannot open {index.parent!s}: {len(missing)} of {len(names)} shards that {index.name} names are "
        f"missing. Every shard must be there before anything is loaded. Download these files:{''.join(lines)}"
    )


def _locate(weights: Path, shards: Mapping[str, Header], index_map: Mapping[str, str] | None) -> Mapping[str, Located]:
    files = {
        name: SourceFile(header.path, header.identity, HeaderFingerprint(header.data_start_nbytes, header.sha256))
        for name, header in shards.items()
    }
    if index_map is not None:
        _check_index(weights, shards, index_map)
    tensors: dict[str, Located] = {}
    for name, header in shards.items():
        for tensor, entry in header.entries.items():
            # The index decides between copies. Without its word a tensor may have one home only.
            home = index_map.get(tensor) if index_map is not None else None
            if home is not None and home != name:
                continue
            if tensor in tensors:
                raise GarbledHeader(
                    f"cannot open {weights!s}: tensor {tensor!r} is in {tensors[tensor].file.path!s} and in "
                    f"{header.path!s}, and the index names neither. A tensor has one home. Re-download the "
                    "index."
                )
            tensors[tensor] = Located(files[name], entry)
    return MappingProxyType(tensors)


def _check_index(index: Path, shards: Mapping[str, Header], index_map: Mapping[str, str]) -> None:
    absent = [(tensor, name) for tensor, name in index_map.items() if tensor not in shards[name].entries]
    if not absent:
        return
    raise MissingTensors(
        f"cannot open {index.parent!s}: {len(absent)} of {len(index_map)} tensors are not in the shard "
        f"that {index.name} names: {_listed(_pairs(absent))}. No tensor is ever made up. Re-download these "
        "shards and the index: they belong to different versions."
    )


def _pairs(absent: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{tensor} in {name}" for tensor, name in absent]
