"""What an upcycled checkpoint consists of, decided before a byte of it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from strideweave.checkpoint import ShardPlan
from strideweave.tools.llama_source import LlamaSource

_CONFIG_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "initializer_range",
    "rms_norm_eps",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "attention_dropout",
    "rope_parameters",
)
"""What a Llama configuration and a Mixtral one both say."""


class UpcycleError(RuntimeError):
    """The demo checkpoint cannot be built as asked; nothing stands under its name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the bytes of the result: two builds with one recipe are equal."""

    experts: int
    """Copies of every feed-forward block."""
    top_k: int
    """Experts per token."""
    seed: int
    """Of the routers' random weights."""
    shard_nbytes: int
    """About how large a file gets."""
    source: str | None
    """The hash of the source model, or None while it is not loaded."""

    def agrees(self, other: object) -> bool:
        """Whether a recorded recipe is this one; the source counts once it is known."""
        if not isinstance(other, dict):
            return False
        mine = asdict(self)
        return all(other.get(key) == value for key, value in mine.items() if value is not None)


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor of the result: a copy of one of the source's, or the router of a layer."""

    name: str
    """Its name in the Mixtral format."""
    shape: tuple[int, ...]
    """Its extents."""
    source: str | None = None
    """The tensor of the source that it is a copy of, or None for a router."""
    layer: int = 0
    """The layer of a router."""

    @property
    def nbytes(self) -> int:
        """Its size in bfloat16."""
        return 2 * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Everything that is decided before the first byte is written."""

    recipe: Recipe
    """What was asked for, with the hash of the source."""
    config: dict[str, Any]
    """The content of config.json."""
    targets: dict[str, Target]
    """The tensors by name."""
    shards: tuple[ShardPlan, ...]
    """The files."""

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        return sum(plan.file_nbytes for plan in self.shards)


def with_source(recipe: Recipe, source: LlamaSource | None) -> Recipe:
    """The recipe with the hash of the source in it, once there is a source."""
    return recipe if source is None else replace(recipe, source=_source_digest(source.model))


def plan_build(recipe: Recipe, source: LlamaSource) -> BuildPlan:
    """The names, shapes, places and files of the result. Errors: UpcycleError for no plain Llama model."""
    llama = source.model.config
    _require_plain_llama(llama)
    recipe = with_source(recipe, source)
    units = list(_units(llama, recipe.experts))
    _require_tensors(source.model, units)
    groups = _grouped(units, recipe.shard_nbytes)
    shards = tuple(
        ShardPlan.of(
            f"model-{k:05d}-of-{len(groups):05d}.safetensors",
            [(target.name, "BF16", target.shape) for target in group],
            {"format": "pt"},
        )
        for k, group in enumerate(groups, 1)
    )
    targets = {target.name: target for group in groups for target in group}
    return BuildPlan(recipe, _mixtral_config(llama, recipe), targets, shards)


def _require_plain_llama(llama: Any) -> None:
    biases = [name for name in ("attention_bias", "mlp_bias") if getattr(llama, name, False)]
    if llama.model_type != "llama" or biases:
        raise UpcycleError(
            f"cannot upcycle a {llama.model_type!r} model with {', '.join(biases) or 'no biases'}. Mixtral "
            "has the attention of Llama and no biases. Give a Llama model without them."
        )


def _require_tensors(model: Any, units: list[list[Target]]) -> None:
    have = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wanted = {t.source: t.shape for unit in units for t in unit if t.source is not None}
    wrong = [f"{name} {shape} (has {have.get(name)})" for name, shape in wanted.items() if have.get(name) != shape]
    if wrong:
        raise UpcycleError(
            f"cannot upcycle this model: {len(wrong)} of {len(wanted)} tensors are not as its "
            f"configuration says: {', '.join(wrong[:3])}. Every weight has a source. Give an unchanged "
            "Llama model."
        )


def _units(llama: Any, experts: int) -> Iterator[list[Target]]:
    """Tensors that stay together in a file, in the order of the model: an expert, or one tensor alone."""
    hidden, inner, heads = llama.hidden_size, llama.intermediate_size, llama.num_attention_heads
    q, kv = heads * llama.head_dim, llama.num_key_value_heads * llama.head_dim
    same: list[tuple[str, tuple[int, ...]]] = [
        ("self_attn.q_proj.weight", (q, hidden)),
        ("self_attn.k_proj.weight", (kv, hidden)),
        ("self_attn.v_proj.weight", (kv, hidden)),
        ("self_attn.o_proj.weight", (hidden, q)),
        ("input_layernorm.weight", (hidden,)),
        ("post_attention_layernorm.weight", (hidden,)),
    ]
    # w1, w3, w2: gate and up are one matrix in memory, so that a whole expert is one run on disk and there.
    expert = [
        ("w1", "gate_proj", (inner, hidden)),
        ("w3", "up_proj", (inner, hidden)),
        ("w2", "down_proj", (hidden, inner)),
    ]
    vocabulary = (llama.vocab_size, hidden)
    yield [Target("model.embed_tokens.weight", vocabulary, "model.embed_tokens.weight")]
    for layer in range(llama.num_hidden_layers):
        at = f"model.layers.{layer}"
        for name, shape in same:
            yield [Target(f"{at}.{name}", shape, f"{at}.{name}")]
        yield [Target(f"{at}.block_sparse_moe.gate.weight", (experts, hidden), layer=layer)]
        for k in range(experts):
            yield [
                Target(f"{at}.block_sparse_moe.experts.{k}.{ours}.weight", shape, f"{at}.mlp.{theirs}.weight")
                for ours, theirs, shape in expert
            ]
    yield [Target("model.norm.weight", (hidden,), "model.norm.weight")]
    if not llama.tie_word_embeddings:
        yield [Target("lm_head.weight", vocabulary, "lm_head.weight")]


def _grouped(units: list[list[Target]], shard_nbytes: int) -> list[list[Target]]:
    """Units in the order of the model, filled into shards; in a shard the largest come first."""
    shards: list[list[list[Target]]] = [[]]
    room = shard_nbytes
    for unit in units:
        nbytes = sum(target.nbytes for target in unit)
        if nbytes > room and shards[-1]:
            shards.append([])
            room = shard_nbytes
        shards[-1].append(unit)
        room -= nbytes
    # Large tensors of a round size begin on page borders then; small ones would push them off.
    return [[target for unit in sorted(shard, key=lambda unit: -unit[0].nbytes) for target in unit] for shard in shards]


def _mixtral_config(llama: Any, recipe: Recipe) -> dict[str, Any]:
    from transformers import MixtralConfig

    shared = {name: getattr(llama, name) for name in _CONFIG_FIELDS}
    config = MixtralConfig(
        **shared,
        num_local_experts=recipe.experts,
        num_experts_per_tok=recipe.top_k,
        sliding_window=None,
        architectures=["MixtralForCausalLM"],
        dtype="bfloat16",
    )
    return dict(config.to_dict())


def _source_digest(model: Any) -> str:
    facts = {name: getattr(model.config, name) for name in _CONFIG_FIELDS}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(bf16_bytes(tensor))
    return digest.hexdigest()


def router_weight(target: Target, build: BuildPlan) -> torch.Tensor:
    """The random weights that send a layer's tokens to experts: one stream of numbers per seed and layer."""
    generator = torch.Generator().manual_seed(build.recipe.seed * 65_537 + target.layer)
    return torch.randn(target.shape, generator=generator).mul(build.config["initializer_range"])


def bf16_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of the values in bfloat16; the tensor's own memory when it is that already."""
    values = tensor.detach().to(device="cpu", dtype=torch.bfloat16).contiguous()
    return values.view(torch.uint8).numpy().data.cast("B")
