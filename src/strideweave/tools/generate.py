"""One answer from a model whose experts are on disk, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

from strideweave.carriers.tiled_evictable import Statistics
from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from strideweave.integrations.transformers import ExpertPlan, from_pretrained
from strideweave.integrations.transformers.memory import peak_rss_nbytes, reset_peak_rss, rss_nbytes

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunReport:
    """What one answer was and what it cost. Units: seconds, bytes."""

    plan: ExpertPlan
    prompt_tokens: int
    new_tokens: int
    text: str
    load_s: float
    first_token_s: float
    """From the start of generation to the first token: the prompt's experts come in here."""
    decode_s: float
    """From the first token to the last."""
    statistics: Statistics
    """Counters of the whole answer."""
    decode: Statistics
    """Counters of the tokens after the first."""
    optimal_hits: int
    """The most hits that any policy could have had on the same accesses (Belady)."""
    residency: list[list[bool]]
    """For every layer, which experts are in memory at the end."""
    peak_rss_nbytes: int
    """Of the whole process, libraries included, from before the model was opened to the last token."""
    base_rss_nbytes: int
    """What of it was there before the model was opened: Python and the libraries."""
    verified: bool | None = None
    """Whether the stock model's logits were bit-equal at every step; None when it was not asked."""

    @property
    def tokens_per_s(self) -> float:
        """Decoded tokens a second, the first one left out."""
        return (self.new_tokens - 1) / self.decode_s if self.new_tokens > 1 else 0.0

    @property
    def bytes_per_token(self) -> float:
        """Bytes read for each decoded token."""
        return self.decode.bytes_read / max(1, self.new_tokens - 1)

    @property
    def optimal_hit_rate(self) -> float:
        """The best hit rate that any policy could have had."""
        asked = self.statistics.hits + self.statistics.misses
        return self.optimal_hits / asked if asked else 0.0

    @property
    def hit_rate_over_optimal(self) -> float:
        """The hits as a share of the best possible; 1 where there were none to have."""
        return self.statistics.hits / self.optimal_hits if self.optimal_hits else 1.0

    def as_json(self) -> dict[str, Any]:
        """Plain data, with names that stay."""
        counters = ("hits", "misses", "evictions", "bytes_read", "stall_s", "resident_tiles")
        return {
            "path": self.plan.path,
            "budget_nbytes": self.plan.budget_nbytes,
            "tile_nbytes": self.plan.tile_nbytes,
            "tiles_that_fit": self.plan.tiles_that_fit,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "text": self.text,
            "load_s": self.load_s,
            "first_token_s": self.first_token_s,
            "tokens_per_s": self.tokens_per_s,
            "bytes_per_token": self.bytes_per_token,
            "hit_rate": self.statistics.hit_rate,
            "optimal_hit_rate": self.optimal_hit_rate,
            "resident_nbytes": self.statistics.resident_nbytes,
            "peak_rss_nbytes": self.peak_rss_nbytes,
            "base_rss_nbytes": self.base_rss_nbytes,
            "verified_bit_equal": self.verified,
            **{name: getattr(self.statistics, name) for name in counters},
        }


class _Listener(TextStreamer):  # type: ignore[misc]
    """Hands text on as it comes, and notes when the first and the last token came."""

    def __init__(self, tokenizer: Any, write: Write, statistics: Callable[[], Statistics]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._write = write
        self._statistics = statistics
        self._calls = 0
        self.first_s = self.last_s = time.perf_counter()
        self.at_first: Statistics | None = None

    def put(self, value: torch.Tensor) -> None:
        """The prompt first, then every token."""
        self._calls += 1
        self.last_s = time.perf_counter()
        if self._calls == 2:
            self.first_s, self.at_first = self.last_s, self._statistics()
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Text that will not change any more."""
        self._write(text)


def answer(
    path: str | Path,
    budget: int | str,
    prompt: str,
    *,
    max_new_tokens: int = 128,
    verify: bool = False,
    write: Write = lambda text: None,
    note: Write = lambda text: None,
    watch: AbstractContextManager[Any] | None = None,
) -> RunReport:
    """The model's answer to a prompt, `write` hearing the text as it comes and `note` what happens meanwhile.

    `watch` is entered while the model answers, and neither while it is opened nor while it is closed.

    Errors: as `from_pretrained`. On Ctrl-C the experts are let go and no thread stays.
    """
    tokenizer = _tokenizer(path)
    inputs = _encode(tokenizer, prompt)
    note("opening")
    reset_peak_rss()
    before = rss_nbytes()
    began = time.perf_counter()
    model = from_pretrained(path, budget)
    store = model.strideweave
    load_s = time.perf_counter() - began
    note("generating")
    try:
        listener = _Listener(tokenizer, write, store.statistics)
        with store.record_routes() as routes, torch.inference_mode(), watch or nullcontext():
            start = time.perf_counter()
            out = _generate(model, tokenizer, inputs, max_new_tokens, keep_logits=verify, streamer=listener)
        write("\n")
        total = store.statistics()
        residency = store.residency_map()
    finally:
        store.close()
    prompt_tokens = inputs["input_ids"].shape[1]
    new = out.sequences[0, prompt_tokens:]
    peak = peak_rss_nbytes()
    del model
    verified = None
    if verify:
        note("verifying against the stock model, every expert resident")
        verified = _same_as_stock(path, tokenizer, inputs, max_new_tokens, out)
    return RunReport(
        plan=store.plan,
        prompt_tokens=prompt_tokens,
        new_tokens=len(new),
        text=tokenizer.decode(new, skip_special_tokens=True),
        load_s=load_s,
        first_token_s=listener.first_s - start,
        decode_s=listener.last_s - listener.first_s,
        statistics=total,
        decode=total.since(listener.at_first) if listener.at_first is not None else total,
        optimal_hits=optimal_hits([tile for route in routes for tile in route], total.slots),
        residency=residency,
        peak_rss_nbytes=peak,
        base_rss_nbytes=before,
        verified=verified,
    )


def _tokenizer(path: str | Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"cannot read a prompt for {str(path)!r}: its tokenizer does not load ({reason}). Text needs the model's "
            "own tokenizer. Put its files (tokenizer.json, tokenizer_config.json) into the folder."
        ) from error


def _encode(tokenizer: Any, prompt: str) -> Any:
    if tokenizer.chat_template is None:
        return tokenizer(prompt, return_tensors="pt")
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )


def _generate(model: Any, tokenizer: Any, inputs: Any, max_new_tokens: int, *, keep_logits: bool, streamer: Any) -> Any:
    return model.generate(
        **inputs,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        return_dict_in_generate=True,
        output_logits=keep_logits,
        streamer=streamer,
    )


def _same_as_stock(path: str | Path, tokenizer: Any, inputs: Any, max_new_tokens: int, ours: Any) -> bool:
    """Whether transformers alone, eager experts all in memory, has the same tokens and logits to the last bit."""
    stock = AutoModelForCausalLM.from_pretrained(path, experts_implementation="eager", dtype="auto")
    with torch.inference_mode():
        theirs = _generate(stock, tokenizer, inputs, max_new_tokens, keep_logits=True, streamer=None)
    return torch.equal(ours.sequences, theirs.sequences) and all(
        torch.equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True)
    )
