"""Which bytes of a checkpoint are which expert, and which tensors are the dense rest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch

from strideweave.carriers import Piece
from strideweave.carriers.carrier import byte_view
from strideweave.checkpoint import Checkpoint, CheckpointError, MissingTensors
from strideweave.dtype import DType, StorageDType
from strideweave.integrations.transformers import _compat

_MAX_LISTED = 8


class UnsupportedModel(ValueError):
    """The model is none of the families whose experts can be tiled."""


@dataclass(frozen=True, slots=True)
class Part:
    """One fused parameter inside a tile. Units: elements."""

    name: str
    offset_elems: int
    shape: tuple[int, ...]
    """Of one expert: (out, in) of a matrix, or as the family stores it, and (out,) of a bias."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of one tile. Units: elements."""

    layer: int
    expert: int
    offset_elems: int
    elems: int


@dataclass(frozen=True, slots=True)
class ExpertSources:
    """A checkpoint seen as tiles: one tile is one expert of one layer, all its matrices end to end."""

    model_type: str
    layers: tuple[str, ...]
    """The experts modules, in layer order."""
    experts: int
    """How many experts each layer has."""
    top_k: int
    parts: tuple[Part, ...]
    dtype: StorageDType
    pieces: tuple[Piece, ...]
    """The bytes of every tile: layer by layer, expert by expert, part by part."""
    dense: tuple[str, ...]
    """Checkpoint keys of everything else."""
    dense_nbytes: int
    slices: Mapping[str, tuple[Slice, ...]]
    """For every checkpoint key of experts the stretches of tiles that it is, end to end."""
    names: Mapping[str, str]
    """For every other checkpoint key the parameter of the model that it is."""

    @property
    def tile_elems(self) -> int:
        """The elements of one expert."""
        return sum(math.prod(part.shape) for part in self.parts)

    @property
    def tile_nbytes(self) -> int:
        """The bytes of one expert."""
        return self.tile_elems * self.dtype.itemsize

    @property
    def expert_nbytes(self) -> int:
        """The bytes of all experts."""
        return self.tile_nbytes * self.experts * len(self.layers)


def require_supported(config: Any, path: str) -> str:
    """The model type. Errors: UnsupportedModel, with the list of what is supported."""
    model_type = str(getattr(config, "model_type", None))
    if model_type not in _compat.FAMILIES:
        raise UnsupportedModel(
            f"cannot tile the experts of {path!r}: its model_type is {model_type!r}. Supported are "
            f"{', '.join(sorted(_compat.FAMILIES))}. Load it with transformers as usual, or use one of these."
        )
    if getattr(config, "quantization_config", None):
        raise UnsupportedModel(
            f"cannot tile the experts of {path!r}: the checkpoint is quantized ({config.quantization_config}). "
            "Experts are used as they are stored. Use a bf16, fp16 or fp32 checkpoint."
        )
    return model_type


def resolve(checkpoint: Checkpoint, config: Any) -> ExpertSources:
    """The bytes of every expert. Errors: MissingTensors listing every expert without a source; UnsupportedModel."""
    model_type = require_supported(config, str(checkpoint.path))
    model = _compat.skeleton(config)
    modules = _compat.experts_modules(model, model_type)
    parts = _parts(modules)
    shapes = {part.name: part.shape for part in parts}
    layer_of = {name: k for k, (name, _) in enumerate(modules)}
    experts = int(modules[0][1].num_experts)
    renamer = _compat.Renamer(model)

    found: dict[tuple[int, int, str], dict[int, Piece]] = defaultdict(dict)
    keys: dict[tuple[int, int, str], dict[int, str]] = defaultdict(dict)
    dense: list[str] = []
    names: dict[str, str] = {}
    dtypes: dict[str, str] = {}
    for key, located in checkpoint.tensors.items():
        target = renamer.target(key)
        module, _, parameter = target.name.rpartition(".")
        if module not in layer_of or parameter not in shapes:
            dense.append(key)
            names[key] = target.name
            continue
        dtypes.setdefault(located.entry.dtype, key)
        layer, entry = layer_of[module], located.entry
        if target.expert is not None:
            found[layer, target.expert, parameter][target.rank] = Piece(located.file, entry.offset_nbytes, entry.nbytes)
            keys[layer, target.expert, parameter][target.rank] = key
            continue
        if entry.shape != (experts, *shapes[parameter]):
            raise CheckpointError(
                f"cannot read {key!r} as the fused {parameter} of {module}: its shape is {entry.shape} and the "
                f"model's is {(experts, *shapes[parameter])}. They must be equal. Check config.json against the "
                "weights."
            )
        step = entry.nbytes // experts
        for expert in range(experts):
            found[layer, expert, parameter][0] = Piece(located.file, entry.offset_nbytes + expert * step, step)
            keys[layer, expert, parameter][0] = key

    dtype = _one_dtype(dtypes, str(checkpoint.path))
    pieces: list[Piece] = []
    slices: dict[str, list[Slice]] = defaultdict(list)
    missing: list[str] = []
    for module, layer in layer_of.items():
        for expert in range(experts):
            for part in parts:
                ranked = found.get((layer, expert, part.name), {})
                chosen = [ranked[rank] for rank in sorted(ranked)]
                if sum(piece.nbytes for piece in chosen) == math.prod(part.shape) * dtype.itemsize:
                    pieces.extend(chosen)
                    offset = part.offset_elems
                    for rank in sorted(ranked):
                        elems = ranked[rank].nbytes // dtype.itemsize
                        slices[keys[layer, expert, part.name][rank]].append(Slice(layer, expert, offset, elems))
                        offset += elems
                else:
                    missing.append(f"{module}.{part.name} of expert {expert}")
    if missing:
        raise _missing(checkpoint, missing)
    return ExpertSources(
        model_type=model_type,
        layers=tuple(layer_of),
        experts=experts,
        top_k=_compat.top_k(config),
        parts=parts,
        dtype=dtype,
        pieces=tuple(pieces),
        dense=tuple(dense),
        dense_nbytes=sum(checkpoint.tensors[key].entry.nbytes for key in dense),
        slices={key: tuple(stretches) for key, stretches in slices.items()},
        names=names,
    )


class LazyDense:
    """A dense tensor of a checkpoint that is read, by exact positioned reads, when transformers asks for it."""

    def __init__(self, checkpoint: Checkpoint, key: str) -> None:
        self._checkpoint = checkpoint
        self._key = key
        entry = checkpoint.tensors[key].entry
        self.shape = torch.Size(entry.shape)
        self.dtype = storage_dtype(entry.dtype, key).torch_dtype

    def is_floating_point(self) -> bool:
        """As a tensor says."""
        return self.dtype.is_floating_point

    def __getitem__(self, key: EllipsisType | slice | int) -> torch.Tensor:
        tensor = torch.empty(self.shape, dtype=self.dtype)
        if tensor.numel():
            self._checkpoint.read(self._key, byte_view(tensor))
        return tensor[key]


def storage_dtype(name: str, key: str) -> StorageDType:
    """The storage dtype of a safetensors dtype. Errors: UnsupportedModel for one that has no storage here."""
    try:
        return DType.from_safetensors(name)
    except LookupError as unknown:
        raise UnsupportedModel(f"cannot use tensor {key!r}: {unknown}") from unknown


def dense_state(checkpoint: Checkpoint, sources: ExpertSources) -> Mapping[str, LazyDense]:
    """The dense tensors by checkpoint key, none of them read yet."""
    return {key: LazyDense(checkpoint, key) for key in sources.dense}


def _parts(modules: list[tuple[str, Any]]) -> tuple[Part, ...]:
    """The layout of a tile, which every layer shares."""
    if not modules:
        raise UnsupportedModel(
            "cannot tile the experts of this model: no layer has any. The configuration makes every layer dense. "
            "Load it with transformers as usual."
        )
    shapes = [
        tuple((name, tuple(getattr(module, name).shape)) for name in _compat.expert_parameters(module))
        for _, module in modules
    ]
    if len(set(shapes)) > 1:
        raise UnsupportedModel(
            "cannot tile the experts of this model: its layers have different shapes "
            f"({sorted(set(map(str, shapes)))}). One carrier holds tiles of one shape. Load it with transformers as "
            "usual."
        )
    parts, offset = [], 0
    for name, shape in shapes[0]:
        parts.append(Part(name, offset, shape[1:]))
        offset += math.prod(shape[1:])
    return tuple(parts)


def _one_dtype(dtypes: Mapping[str, str], path: str) -> StorageDType:
    if not dtypes:
        raise MissingTensors(
            f"cannot open {path!r}: it holds no tensor of any expert. Every (layer, parameter, expert) needs one. "
            "Check that the folder holds the weights that config.json describes."
        )
    if len(dtypes) > 1:
        raise UnsupportedModel(
            f"cannot tile the experts of {path!r}: they are stored in {len(dtypes)} dtypes "
            f"({', '.join(f'{d} in {key}' for d, key in dtypes.items())}). Tiles have one dtype. Convert the "
            "checkpoint to one."
        )
    (name, key), *_ = dtypes.items()
    return storage_dtype(name, key)


def _missing(checkpoint: Checkpoint, missing: list[str]) -> MissingTensors:
    listed = "; ".join(missing[:_MAX_LISTED])
    more = f"; and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    index = checkpoint.index_map or {}
    shards = sorted({shard for key, shard in index.items() if key not in checkpoint.tensors})
    where = f" The index places the missing tensors in {', '.join(shards[:_MAX_LISTED])}." if shards else ""
    return MissingTensors(
        f"cannot open {str(checkpoint.path)!r}: {len(missing)} expert parameters have no source or one of the wrong "
        f"size: {listed}{more}.{where} Every (layer, parameter, expert) needs its bytes. Download the checkpoint "
        "again, or check config.json."
    )
