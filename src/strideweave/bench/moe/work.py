"""The synthetic mixture of experts of `bench moe`: its weights, its routes, and the step of all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

Routes = npt.NDArray[np.int64]
"""For each step, layer and token the experts that the router chose, ascending."""
RunLayer = Callable[[int, dict[int, Tensor]], Iterable[tuple[int, Tensor]]]
"""Given a layer and the rows of tokens for each expert: the rows that each expert makes, in any order."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every contestant computes; the same seed gives the same weights, tokens and routes."""

    layers: int = 2
    experts: int = 32
    hidden: int = 2048
    inner: int = 1408
    slots: int = 16
    """Experts that the budget holds."""
    steps: int = 60
    tokens: int = 4
    """Sequences decoded side by side: tokens of one step."""
    top_k: int = 2
    seed: int = 7

    @staticmethod
    def quick() -> Work:
        """The same routes over experts of half the size, and fewer steps."""
        return Work(hidden=1024, steps=12)

    def prefill(self) -> Work:
        """A few steps of so many tokens that every expert is used."""
        return replace(self, steps=2, tokens=2 * self.experts // self.top_k)

    def that_fits(self) -> Work:
        """The same with a budget for every expert."""
        return replace(self, slots=self.layers * self.experts)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of one expert and their shapes, as `linear` takes them."""
        return {"w1": (self.inner, self.hidden), "w2": (self.hidden, self.inner)}

    @property
    def expert_elements(self) -> int:
        """The elements of one expert."""
        return 2 * self.hidden * self.inner

    @property
    def expert_nbytes(self) -> int:
        """The bytes of one expert."""
        return self.expert_elements * torch.bfloat16.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all experts."""
        return self.layers * self.experts * self.expert_nbytes

    @property
    def budget_nbytes(self) -> int:
        """What may be in memory."""
        return self.slots * self.expert_nbytes

    def name(self, layer: int, expert: int, matrix: str) -> str:
        """The name of a matrix in the file. In the order of names, an expert's matrices follow each other."""
        return f"layers.{layer}.experts.{expert:03}.{matrix}"

    def split(self, expert: Tensor) -> list[Tensor]:
        """The matrices of an expert whose elements lie end to end."""
        sizes = [rows * columns for rows, columns in self.matrices.values()]
        parts = torch.split(expert.view(-1), sizes)
        return [part.view(shape) for part, shape in zip(parts, self.matrices.values(), strict=True)]

    def to_json(self) -> str:
        """What `from_json` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Work:
        """What `to_json` wrote."""
        return Work(**json.loads(text))


def write_weights(work: Work, path: Path) -> None:
    """An ordinary safetensors file of the experts: uniform, of the variance of a usual start."""
    names = [
        (work.name(layer, expert, matrix), shape)
        for layer, expert in product(range(work.layers), range(work.experts))
        for matrix, shape in work.matrices.items()
    ]
    header, begin = {}, 0
    for name, shape in names:
        end = begin + shape[0] * shape[1] * torch.bfloat16.itemsize
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (begin, end)}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator().manual_seed(work.seed)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, (rows, columns) in names:
            bound = (3 / columns) ** 0.5
            weight = torch.empty(rows, columns).uniform_(-bound, bound, generator=generator).bfloat16()
            file.write(weight.view(torch.int16).numpy().data)


def draw_routes(work: Work) -> Routes:
    """Routes with the locality of a router: Zipf-like, sticky per sequence, and drifting.

    An expert of popularity rank r in its layer has the logit -ln(r), so that draws follow Zipf's law with
    exponent 1; ranks are a random order of each layer. Every sequence has standard Gumbel noise per layer
    and expert, and its top-k experts of logit + noise are taken: a draw of k without replacement. From one
    step to the next a sequence keeps its noise in a layer with probability 0.7 (locality in time), and in a
    layer two experts swap their ranks with probability 0.2 (drift). With a quarter of the experts resident,
    LRU then hits about three times in four.
    """
    random = np.random.default_rng(work.seed)
    logits = np.stack([random.permutation(-np.log(np.arange(1, work.experts + 1))) for _ in range(work.layers)])
    noise = random.gumbel(size=(work.layers, work.tokens, work.experts))
    steps = []
    for _ in range(work.steps):
        for layer in range(work.layers):
            if random.random() < 0.2:
                one, other = random.choice(work.experts, 2, replace=False)
                logits[layer, [one, other]] = logits[layer, [other, one]]
        is_new = random.random((work.layers, work.tokens, 1)) >= 0.7
        noise = np.where(is_new, random.gumbel(size=noise.shape), noise)
        best = np.argsort(-(logits[:, None] + noise), axis=-1)[..., : work.top_k]
        steps.append(np.sort(best, axis=-1))
    return np.stack(steps).astype(np.int64)


def draw_prefill_routes(work: Work) -> Routes:
    """Routes that use every expert of a layer equally often, by tokens in an order of their own."""
    random = np.random.default_rng(work.seed)
    tokens = np.arange(work.tokens * work.top_k) % work.experts
    steps = [
        [np.sort(random.permutation(work.experts)[tokens].reshape(work.tokens, work.top_k), axis=-1)] * work.layers
        for _ in range(work.steps)
    ]
    return np.array(steps, dtype=np.int64)


def layer_steps(routes: Routes) -> list[tuple[int, list[int]]]:
    """For each layer of each step the experts that are used, ascending."""
    return [(layer, np.unique(chosen).tolist()) for step in routes for layer, chosen in enumerate(step)]


def accesses(routes: Routes) -> list[tuple[int, int]]:
    """Each (layer, expert) that is used, in order: ascending experts in each layer of each step."""
    return [(layer, expert) for layer, experts in layer_steps(routes) for expert in experts]


@torch.inference_mode()
def decode(work: Work, routes: Routes, run_layer: RunLayer) -> str:
    """The checksum of every step's output when `run_layer` runs the experts."""
    generator = torch.Generator().manual_seed(work.seed)
    digest = hashlib.blake2b(digest_size=8)
    for step in routes:
        x = torch.randn(work.tokens, work.hidden, generator=generator).bfloat16()
        for layer, chosen in enumerate(step):
            rows = {int(e): torch.from_numpy(np.nonzero(chosen == e)[0]) for e in np.unique(chosen)}
            outputs = dict(run_layer(layer, {expert: x[where] for expert, where in rows.items()}))
            # Whoever runs the experts in another order still adds in this one: sums of floats depend on it.
            for expert, where in rows.items():
                x = x.index_add(0, where, outputs[expert])
            x = functional.rms_norm(x, (work.hidden,))
        digest.update(x.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def run_expert(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """What one expert makes of rows of tokens."""
    return functional.linear(functional.silu(functional.linear(x, w1)), w2)
