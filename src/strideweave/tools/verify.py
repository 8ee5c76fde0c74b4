"""A checkpoint looked at and read through: what it holds, whether all of it is there, and whether it is what it was."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from strideweave.carriers.carrier import byte_view
from strideweave.checkpoint import Checkpoint, Located
from strideweave.dtype import DType

_PART_NBYTES = 4 << 20
_EXPONENTS: Final[dict[str, tuple[type[np.unsignedinteger[Any]], int]]] = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F800000),
    "F64": (np.uint64, 0x7FF0000000000000),
}
"""The bits of the exponent in floats of 16 bits and more."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What headers and configuration say. Units: bytes."""

    path: str
    shards: int
    tensors: int
    nbytes: int
    dtypes: dict[str, int]
    """Bytes of every dtype."""
    model_type: str | None
    layers: int | None
    """Layers that have experts; None for a model whose experts cannot be tiled, and why is in `refusal`."""
    experts: int | None
    tile_nbytes: int | None
    dense_nbytes: int | None
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What reading everything has shown."""

    path: str
    nbytes: int
    tensors: int
    not_finite: dict[str, int]
    """Tensors with values that are infinite or no numbers, and how many."""
    missing: str | None
    """What of the experts has no bytes; None when everything is there, or the family is not known."""
    differing: list[str] = field(default_factory=list)
    """Tensors that are not what the manifest says."""
    compared: bool = False

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not (self.not_finite or self.missing or self.differing)


def contents(path: Path) -> Contents:
    """What a checkpoint holds, from its headers only. Errors: CheckpointError."""
    checkpoint = Checkpoint.open(path)
    by_dtype: Counter[str] = Counter()
    for located in checkpoint.tensors.values():
        by_dtype[located.entry.dtype] += located.entry.nbytes
    sources, refusal = _sources(checkpoint)
    return Contents(
        path=str(checkpoint.path),
        shards=len(checkpoint.shards),
        tensors=len(checkpoint.tensors),
        nbytes=checkpoint.nbytes,
        dtypes=dict(by_dtype.most_common()),
        model_type=(checkpoint.config or {}).get("model_type"),
        layers=None if sources is None else len(sources.layers),
        experts=None if sources is None else sources.experts,
        tile_nbytes=None if sources is None else sources.tile_nbytes,
        dense_nbytes=None if sources is None else sources.dense_nbytes,
        refusal=refusal,
    )


def verify(path: Path, manifest: Path | None, progress: Callable[[int], None]) -> Verdict:
    """Read every tensor once, in little memory: finite values, all experts there, and the checksums of a manifest.

    A manifest that is not there yet is written, a JSON object of checksums by tensor; one that is there is compared
    with. `progress` hears of bytes. Errors: CheckpointError, StorageError; ValueError for what is no manifest.
    """
    checkpoint = Checkpoint.open(path)
    known = None if manifest is None or not manifest.exists() else _read_manifest(manifest)
    _, refusal = _sources(checkpoint)
    not_finite: dict[str, int] = {}
    sums: dict[str, str] = {}
    for name, located in checkpoint.tensors.items():
        digest, bad = hashlib.blake2b(digest_size=16), 0
        for part in _parts(checkpoint, name, located):
            digest.update(byte_view(part))
            bad += _not_finite(part, located.entry.dtype)
            progress(part.numel())
        sums[name] = f"{located.entry.dtype} {list(located.entry.shape)} {digest.hexdigest()}"
        if bad:
            not_finite[name] = bad
    if manifest is not None and known is None:
        manifest.write_text(json.dumps(sums, indent=1) + "\n")
    differing = sorted(n for n in {*sums, *(known or {})} if known is not None and known.get(n) != sums.get(n))
    missing = refusal if refusal is not None and "no source" in refusal else None
    return Verdict(
        str(checkpoint.path), checkpoint.nbytes, len(sums), not_finite, missing, differing, known is not None
    )


def _parts(checkpoint: Checkpoint, name: str, located: Located) -> Iterator[torch.Tensor]:
    """The bytes of a tensor, a few MiB at a time, in memory that is used again."""
    entry = located.entry
    room = torch.empty(min(_PART_NBYTES, entry.nbytes), dtype=torch.uint8)
    for begin in range(0, entry.nbytes, _PART_NBYTES):
        part = room[: min(_PART_NBYTES, entry.nbytes - begin)]
        located.file.read_into([(entry.offset_nbytes + begin, byte_view(part))])
        yield part


def _not_finite(part: torch.Tensor, dtype: str) -> int:
    """How many values have all bits of the exponent set, which are the infinite ones and those that are no number."""
    if dtype in _EXPONENTS:
        kind, exponent = _EXPONENTS[dtype]
        bits = np.bitwise_and(part.numpy().view(kind), exponent)
        return int((bits == exponent).sum()) if bits.size and bits.max() == exponent else 0
    try:
        narrow = DType.from_safetensors(dtype).torch_dtype
    except LookupError:
        return 0
    if not narrow.is_floating_point:
        return 0
    return int((~torch.isfinite(part.view(narrow).float())).sum())


def _sources(checkpoint: Checkpoint) -> tuple[Any, str | None]:
    """The experts of a model of transformers, or why there are none."""
    from strideweave.integrations.transformers import _compat
    from strideweave.integrations.transformers.sources import resolve

    if not checkpoint.path.is_dir() or checkpoint.config is None:
        return None, "there is no config.json beside the weights"
    try:
        return resolve(checkpoint, _compat.load_config(str(checkpoint.path))), None
    except (ValueError, KeyError, OSError) as refusal:
        return None, str(refusal)


def _read_manifest(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except ValueError as e:
        found, reason = None, str(e)
    else:
        reason = "it is no object of texts"
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(
            f"cannot compare with {str(path)!r}: {reason}. A manifest is what `strideweave verify --manifest` has "
            "written. Name another file, or one that is not there yet."
        )
    return found


def as_json(found: Contents | Verdict) -> dict[str, Any]:
    """Plain data, with names that stay."""
    document = asdict(found)
    if isinstance(found, Verdict):
        document["is_good"] = found.is_good
    return document
