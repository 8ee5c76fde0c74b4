"""A real mixture-of-experts checkpoint, made from a small dense model by sparse upcycling.

Every feed-forward block is copied into several experts behind a random router, so that the text stays the
dense model's while the files have the size, the format and the access pattern of a mixture.

Source: Komatsuzaki et al., "Sparse Upcycling", 2022; the Mixtral checkpoint format of transformers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strideweave.checkpoint import (
    Checkpoint,
    CheckpointError,
    ShardPlan,
    TensorEntry,
    read_header,
    write_shard,
)
from strideweave.io import FileIdentity, cache_root, hold, publish
from strideweave.tools.llama_source import LlamaSource, MissingSourceError, find_smollm2, load_smollm2
from strideweave.tools.upcycle_plan import (
    BuildPlan,
    Recipe,
    UpcycleError,
    bf16_bytes,
    plan_build,
    router_weight,
    with_source,
)

__all__ = [
    "InsufficientSpaceError",
    "LlamaSource",
    "MissingSourceError",
    "UpcycleError",
    "build_upcycled_checkpoint",
    "default_demo_path",
]

Progress = Callable[[int, int], None]
"""Told after every tensor: bytes that stand on disk, bytes of the whole checkpoint."""

_INDEX_NAME = "model.safetensors.index.json"
_MANIFEST_NAME = "build.json"
_RECIPE_KEY = "strideweave_upcycle"
_OTHER_FILES_NBYTES = 32 * 2**20
"""Room for what is not weights: tokenizer, configuration, index."""


class InsufficientSpaceError(UpcycleError, OSError):
    """The disk has no room for the checkpoint; no shard was begun."""


def default_demo_path() -> Path:
    """Where the demo checkpoint lies unless somebody says otherwise: below the directory that we own.

    >>> default_demo_path().name
    'smollm2-135m-instruct-mixtral-8x'
    """
    return cache_root() / "demo" / "smollm2-135m-instruct-mixtral-8x"


def build_upcycled_checkpoint(
    destination: Path,
    *,
    experts: int = 8,
    top_k: int = 2,
    seed: int = 0,
    shard_nbytes: int = 256 * 2**20,
    progress: Progress | None = None,
    source: LlamaSource | None = None,
) -> Path:
    """A whole Mixtral-format checkpoint stands at `destination`, in bfloat16, and its text is the source's.

    A build that was interrupted left its finished shards in `<destination>.partial`: they are proven and
    kept, the rest is built, and one rename makes the result visible. A result that is there already is proven
    and returned. The source is SmolLM2-135M-Instruct unless one is given; memory holds it and one tensor.

    Units: bytes. Errors: MissingSourceError without the source's package; InsufficientSpaceError before a
    shard is begun; UpcycleError when something else stands at `destination`, or the source is no plain Llama
    model; StorageError when another process is building the same checkpoint, or the disk fails.
    """
    destination = Path(os.path.abspath(destination))
    recipe = Recipe(experts, top_k, seed, shard_nbytes, None)
    _check_arguments(destination, recipe)
    if _stands(destination):
        return _proven(destination, recipe, source)
    if source is None:
        find_smollm2()
    partial = destination.with_name(destination.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    try:
        # The lock of the folder goes with the process, whatever ends it.
        with hold(partial):
            if _stands(destination):  # another process finished while this one was on its way to the lock
                return _proven(destination, recipe, source)
            if not _is_complete(partial, recipe, source):
                source = source or load_smollm2()
                _fill(partial, plan_build(recipe, source), source, progress)
            (partial / _MANIFEST_NAME).unlink(missing_ok=True)
            _sync(partial)
            partial.rename(destination)
            _sync(destination.parent)
    finally:
        with contextlib.suppress(OSError):
            partial.rmdir()  # only when it is empty: there is nothing to go on from
    return destination


def _check_arguments(destination: Path, recipe: Recipe) -> None:
    if recipe.experts < 1 or not 1 <= recipe.top_k <= recipe.experts or recipe.shard_nbytes < 1:
        raise ValueError(
            f"cannot build {destination!s}: experts={recipe.experts}, top_k={recipe.top_k}, "
            f"shard_nbytes={recipe.shard_nbytes}. There is at least one expert, a token goes to between "
            "one and all of them, and a shard has room. Change these numbers."
        )


def _stands(destination: Path) -> bool:
    """Whether the name is taken; an empty folder is as good as none."""
    return os.path.lexists(destination) and not (destination.is_dir() and not any(destination.iterdir()))


def _proven(destination: Path, recipe: Recipe, source: LlamaSource | None) -> Path:
    """The checkpoint at `destination`, if it is whole and of this recipe."""
    recorded = _recorded_recipe(destination / _INDEX_NAME)
    if not with_source(recipe, source).agrees(recorded):
        found = f"it was built as {recorded}" if recorded else "something else is there"
        raise UpcycleError(
            f"cannot build {destination!s}: {found}, {asdict(recipe)} is asked for. What stands under a "
            "name is never replaced. Choose another path, or remove it."
        )
    try:
        Checkpoint.open(destination)
    except CheckpointError as error:
        raise UpcycleError(
            f"cannot use {destination!s}: it is no longer whole. A shard is never replaced on its own. "
            f"Remove the folder: it is built again.\n    {error}"
        ) from error
    return destination


def _recorded_recipe(path: Path) -> object:
    """The recipe in an index or a manifest; None when there is none to be read."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads(path.read_bytes()).get("metadata", {}).get(_RECIPE_KEY)
    return None


def _is_complete(partial: Path, recipe: Recipe, source: LlamaSource | None) -> bool:
    """Whether only the rename is left to do: the index is written last."""
    if not with_source(recipe, source).agrees(_recorded_recipe(partial / _INDEX_NAME)):
        return False
    try:
        Checkpoint.open(partial)
    except CheckpointError:
        return False
    return True


def _fill(partial: Path, build: BuildPlan, source: LlamaSource, progress: Progress | None) -> None:
    """The folder holds the whole checkpoint; the index, written last, says so."""
    _require_ours(partial)
    identities = _finished(partial, build)
    # Before anything is removed: at every moment the folder says whose it is.
    _write_manifest(partial, build.recipe, identities)
    _remove_all_but(partial, {_MANIFEST_NAME, *identities})
    _require_space(partial, build, identities)
    _write_shards(partial, build, source, identities, progress)
    _write_companions(partial, build, source)
    _write_index(partial, build)


def _finished(partial: Path, build: BuildPlan) -> dict[str, FileIdentity]:
    """The shards of an earlier build that are whole and of this recipe."""
    manifest = partial / _MANIFEST_NAME
    recorded: dict[str, Any] = {}
    if build.recipe.agrees(_recorded_recipe(manifest)):
        recorded = json.loads(manifest.read_bytes()).get("shards", {})
    return {
        plan.name: FileIdentity.of(partial / plan.name)
        for plan in build.shards
        if plan.name in recorded and _is_finished(partial / plan.name, plan, recorded[plan.name])
    }


def _remove_all_but(partial: Path, kept: set[str]) -> None:
    for path in partial.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _require_ours(partial: Path) -> None:
    """Refuse to clean a folder that no build of ours made."""
    visible = [path.name for path in partial.iterdir() if not path.name.startswith(".")]
    if visible and not any(_recorded_recipe(partial / name) for name in (_MANIFEST_NAME, _INDEX_NAME)):
        raise UpcycleError(
            f"cannot build in {partial!s}: it holds {', '.join(sorted(visible)[:3])} and no record of a "
            "build. Only what a build left is continued or removed. Move the folder away, or choose "
            "another path."
        )


def _is_finished(path: Path, plan: ShardPlan, recorded: object) -> bool:
    with contextlib.suppress(OSError, CheckpointError):
        header = read_header(path)
        entries = {entry.name: entry for entry in plan.entries}
        return asdict(header.identity) == recorded and dict(header.entries) == entries
    return False


def _require_space(partial: Path, build: BuildPlan, kept: dict[str, FileIdentity]) -> None:
    missing = sum(plan.file_nbytes for plan in build.shards if plan.name not in kept) + _OTHER_FILES_NBYTES
    free = shutil.disk_usage(partial).free
    if free < missing:
        raise InsufficientSpaceError(
            f"cannot build {partial.with_suffix('')!s}: needs {missing / 2**20:.1f} MiB more, "
            f"{free / 2**20:.1f} MiB are free on this disk. A build begins only when all of it fits. Free "
            f"{(missing - free) / 2**20:.1f} MiB, or build elsewhere (STRIDEWEAVE_CACHE_DIR)."
        )


def _write_manifest(partial: Path, recipe: Recipe, identities: dict[str, FileIdentity]) -> None:
    shards = {name: asdict(identity) for name, identity in identities.items()}
    _publish_json(partial / _MANIFEST_NAME, {"metadata": {_RECIPE_KEY: asdict(recipe)}, "shards": shards})


def _write_shards(
    partial: Path,
    build: BuildPlan,
    source: LlamaSource,
    identities: dict[str, FileIdentity],
    progress: Progress | None,
) -> None:
    state = source.model.state_dict()
    done = sum(plan.file_nbytes for plan in build.shards if plan.name in identities)

    def tell(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, build.nbytes)

    def values(entry: TensorEntry) -> memoryview:
        target = build.targets[entry.name]
        tensor = state[target.source] if target.source is not None else router_weight(target, build)
        return bf16_bytes(tensor)

    tell(0)
    for plan in build.shards:
        if plan.name in identities:
            continue
        write_shard(plan, partial, values, after=lambda entry: tell(entry.nbytes))
        identities[plan.name] = FileIdentity.of(partial / plan.name)
        _write_manifest(partial, build.recipe, identities)
        tell(len(plan.header))


def _write_companions(partial: Path, build: BuildPlan, source: LlamaSource) -> None:
    _publish_json(partial / "config.json", build.config)
    before = set(partial.iterdir())
    if source.model.generation_config is not None:
        source.model.generation_config.save_pretrained(partial)
    if source.tokenizer is not None:
        source.tokenizer.save_pretrained(partial)
    for path in set(partial.iterdir()) - before:
        _sync(path)


def _write_index(partial: Path, build: BuildPlan) -> None:
    total = sum(target.nbytes for target in build.targets.values())
    weight_map = {entry.name: plan.name for plan in build.shards for entry in plan.entries}
    metadata = {"total_size": total, _RECIPE_KEY: asdict(build.recipe)}
    _sync(partial)
    _publish_json(partial / _INDEX_NAME, {"metadata": metadata, "weight_map": weight_map})


def _publish_json(path: Path, document: dict[str, Any]) -> None:
    with publish(path) as temporary:
        temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
