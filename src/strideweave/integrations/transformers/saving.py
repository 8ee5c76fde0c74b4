"""`save_pretrained` of a model whose experts are tiles: one tile in memory at a time, and whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from strideweave.carriers.carrier import byte_view
from strideweave.carriers.tiled_evictable import TileSet
from strideweave.carriers.tiled_evictable.budget import format_nbytes, parse_nbytes
from strideweave.checkpoint import Checkpoint, ShardPlan, TensorEntry, write_shard
from strideweave.dtype import DType
from strideweave.integrations.transformers.sources import ExpertSources, Slice
from strideweave.io import StorageError, publish

if TYPE_CHECKING:
    from strideweave.integrations.transformers.experts import ExpertStore

_IGNORED = {"is_main_process": True, "save_peft_format": True, "safe_serialization": True, "save_original_format": True}
"""Arguments of the stock method, with the values that change nothing here."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """One tensor that is written: where its bytes come from, and what the file says of it."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    dense: torch.Tensor | None
    slices: tuple[Slice, ...]
    """Of experts, end to end."""


class Saver:
    """Stands in for the model's own `save_pretrained`, which would leave the experts out."""

    def __init__(self, model: Any, checkpoint: Checkpoint, sources: ExpertSources) -> None:
        self._model = weakref.ref(model)
        self._checkpoint = checkpoint
        self._sources = sources

    def __call__(
        self, save_directory: str | os.PathLike[str], max_shard_size: int | str = "5GB", **kwargs: Any
    ) -> None:
        """Write the model as it is now, every tensor under the name that it has in the checkpoint it was opened from.

        Experts pass through one tile of memory. The folder appears at the end, whole and on the disk; whatever happens
        before leaves nothing. Stock transformers loads the result, bit for bit.

        Units: `max_shard_size` in bytes, or text. Errors: ValueError for a folder that is not empty; TypeError for an
        argument that cannot be followed; StorageError when the disk has no room or refuses.
        """
        model = self._model()
        assert model is not None
        for name, value in kwargs.items():
            if name not in _IGNORED or value != _IGNORED[name]:
                raise TypeError(
                    f"cannot save with {name}={value!r}: experts are written tile by tile, under the names of their "
                    f"checkpoint, to a folder. Leave {name} out; to share the result, upload the folder."
                )
        final = Path(os.path.abspath(save_directory))
        if final.is_dir() and any(final.iterdir()):
            raise ValueError(
                f"cannot save to {str(final)!r}: there is something in it. A checkpoint appears whole, in a folder of "
                "its own, and never replaces another one. Name a new folder."
            )
        planned = sorted(self._planned(model), key=_by_tile)
        shards = _shards(planned, parse_nbytes(max_shard_size))
        total = sum(shard.file_nbytes for shard in shards)
        _require_room(final, total)
        tensors = {tensor.key: tensor for tensor in planned}
        store: ExpertStore = model.strideweave
        with (
            publish(final, is_folder=True) as folder,
            tqdm(total=total, unit="B", unit_scale=True, desc="saving", disable=None) as bar,
        ):
            for shard in shards:
                write_shard(
                    shard,
                    folder,
                    lambda entry: _values(store, self._sources, tensors[entry.name]),
                    lambda entry: _advance(bar, entry),
                )
            if len(shards) > 1:
                index = {
                    "metadata": {"total_size": sum(e.nbytes for shard in shards for e in shard.entries)},
                    "weight_map": {entry.name: shard.name for shard in shards for entry in shard.entries},
                }
                (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
            model.config.save_pretrained(folder)
            if model.can_generate():
                model.generation_config.save_pretrained(folder)

    def _planned(self, model: Any) -> Iterator[_Planned]:
        state = _dense_state(model)
        for key, located in self._checkpoint.tensors.items():
            slices = self._sources.slices.get(key)
            if slices is not None:
                yield _Planned(key, model.dtype, located.entry.shape, None, slices)
            elif (dense := state.get(self._sources.names[key])) is not None:
                yield _Planned(key, dense.dtype, tuple(dense.shape), dense, ())

    def __deepcopy__(self, memo: dict[int, Any]) -> Saver:
        model = self._model()
        return Saver(memo.get(id(model), model), self._checkpoint, self._sources)


def _by_tile(tensor: _Planned) -> tuple[int, int, int]:
    """Dense tensors first, then what is of one expert together, so that a tile is brought once."""
    if not tensor.slices:
        return -1, 0, 0
    first = tensor.slices[0]
    return first.layer, first.expert, first.offset_elems


def _advance(bar: tqdm[Any], entry: TensorEntry) -> None:
    bar.update(entry.nbytes)


def _dense_state(model: Any) -> Mapping[str, torch.Tensor]:
    """What the model holds itself, as torch tells it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has no experts is known here
        found: Mapping[str, torch.Tensor] = model.state_dict()
    return found


def _shards(tensors: list[_Planned], most_nbytes: int) -> list[ShardPlan]:
    """The tensors in files of at most so many bytes, or of one tensor that is larger."""
    groups: list[list[_Planned]] = []
    filled = most_nbytes + 1
    for tensor in tensors:
        nbytes = tensor.dtype.itemsize * torch.Size(tensor.shape).numel()
        if filled + nbytes > most_nbytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += nbytes
    count = len(groups)
    return [
        ShardPlan.of(
            "model.safetensors" if count == 1 else f"model-{k:05}-of-{count:05}.safetensors",
            [(t.key, DType.from_torch(t.dtype).safetensors_name, t.shape) for t in group],
            {"format": "pt"},
        )
        for k, group in enumerate(groups, 1)
    ]


def _values(store: ExpertStore, sources: ExpertSources, tensor: _Planned) -> Iterator[memoryview]:
    """The bytes of a tensor, an expert's after the other's."""
    if tensor.dense is not None:
        yield byte_view(tensor.dense.detach().contiguous().view(-1))
        return
    for piece in tensor.slices:
        with store.carrier.borrow(TileSet([(piece.layer, piece.expert, 0)])) as views:
            (view,) = views.values()
            part = view.view(-1)[piece.offset_elems : piece.offset_elems + piece.elems].to(tensor.dtype)
            yield byte_view(part)


def _require_room(final: Path, nbytes: int) -> None:
    parent = next(p for p in final.parents if p.is_dir())
    free = shutil.disk_usage(parent).free
    if free < nbytes:
        raise StorageError(
            f"cannot save {format_nbytes(nbytes)} to {str(final)!r}: its disk has {format_nbytes(free)} left. A "
            f"checkpoint is written whole. Free {nbytes - free} bytes, or name a folder on another disk.",
            path=str(final),
            length_nbytes=nbytes,
        )
