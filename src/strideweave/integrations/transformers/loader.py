"""`from_pretrained`: the ordinary model, its experts on disk."""

from __future__ import annotations

import os
import warnings
from typing import Any

from strideweave.carriers.tiled_evictable import Adaptive, ResidencyPolicy
from strideweave.carriers.tiled_evictable.budget import format_nbytes
from strideweave.checkpoint import Checkpoint, MissingTensors
from strideweave.integrations.transformers import _compat
from strideweave.integrations.transformers.experts import ExpertStore, LayerExperts, experts_forward
from strideweave.integrations.transformers.foresight import foresight_of
from strideweave.integrations.transformers.plan import plan_of
from strideweave.integrations.transformers.saving import Saver
from strideweave.integrations.transformers.sources import dense_state, require_supported, resolve

_REFUSED = {
    "experts_implementation": "StrideWeave is the experts implementation",
    "quantization_config": "experts are used as they are stored",
    "state_dict": "weights come from the checkpoint",
    "gguf_file": "experts are read from safetensors",
    "output_loading_info": "a checkpoint with missing or unexpected tensors is refused",
}


def from_pretrained(
    path: str | os.PathLike[str],
    budget: int | str = "4GiB",
    *,
    residency_policy: ResidencyPolicy | None = None,
    prefetch: bool = True,
    **kwargs: Any,
) -> Any:
    """The model of a checkpoint folder, of its normal class, with at most `budget` bytes of experts in memory.

    Experts are read from the checkpoint as a step needs them, one tile an expert; nothing is converted, copied or
    written beside it. Logits are bit-equal to `experts_implementation="eager"` on the same machine, dtype and
    thread count.
    With `prefetch` the experts of the next layer are read ahead, as its router foretells them, while that is of use;
    logits do not depend on it. `model.strideweave` has `statistics()`, `residency_map()` and `close()`, and
    `model.save_pretrained` writes a whole checkpoint, an expert at a time. Other keyword arguments go to transformers.

    Units: `budget` in bytes, or text such as "4GiB".
    Errors: CheckpointError (a ValueError) for a folder that is no whole checkpoint; UnsupportedModel for another
    family; PlanRefused when the budget is below one expert or memory cannot hold the dense part; TypeError for an
    argument that contradicts tiling. All before any weight is used.
    """
    for name, reason in _REFUSED.items():
        if name in kwargs:
            raise TypeError(
                f"cannot load {os.fspath(path)!r} with {name}={kwargs[name]!r}: {reason}. Leave {name} out."
            )
    if kwargs.get("device_map") not in (None, "cpu", {"": "cpu"}):
        raise TypeError(
            f"cannot load {os.fspath(path)!r} with device_map={kwargs['device_map']!r}: this version computes on the "
            "CPU. Leave device_map out."
        )
    checkpoint = Checkpoint.open(path)
    folder = str(checkpoint.path)
    config = kwargs.pop("config", None) or _compat.load_config(folder)
    model_type = require_supported(config, folder)
    sources = resolve(checkpoint, config)
    numbers = plan_of(checkpoint, sources, budget)
    _compat.register(experts_forward)
    store = ExpertStore(sources, numbers, Adaptive() if residency_policy is None else residency_policy)
    try:
        with _compat.without_expert_parameters(model_type):
            model, report = _compat.load_model(
                config,
                folder,
                dense_state(checkpoint, sources),
                experts_implementation=_compat.EXPERTS_NAME,
                **{"dtype": "auto", **kwargs},
            )
        _require_whole(report, folder)
        for layer, (_, module) in enumerate(_compat.experts_modules(model, model_type)):
            module._strideweave = LayerExperts(store, layer)
    except BaseException:
        store.close()
        raise
    if prefetch:
        store.foresight = foresight_of(model, model_type, store.carrier, sources.top_k)
    model.strideweave = store
    model.save_pretrained = Saver(model, checkpoint, sources)
    model.register_state_dict_post_hook(_tell_of_experts)
    return model


def _require_whole(report: dict[str, Any], folder: str) -> None:
    """Nothing may have been made up: every parameter came from the checkpoint."""
    missing = sorted(report["missing_keys"])
    mismatched = sorted(str(key) for key in report["mismatched_keys"])
    if missing or mismatched:
        raise MissingTensors(
            f"cannot load {folder!r}: {len(missing)} parameters are not in the checkpoint ({', '.join(missing[:8])}) "
            f"and {len(mismatched)} have another shape ({', '.join(mismatched[:8])}). Every parameter needs its "
            "bytes. Download the checkpoint again."
        )


def _tell_of_experts(model: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """A state without experts is nothing that a model could be made of; whoever takes one hears of it."""
    plan = model.strideweave.plan
    warnings.warn(
        f"this state_dict has no experts: {plan.layers * plan.experts} of them, {format_nbytes(plan.expert_nbytes)}, "
        "are tiles on disk. It holds the dense parameters only. Use save_pretrained(folder) for a checkpoint of the "
        "whole model.",
        stacklevel=3,
    )
