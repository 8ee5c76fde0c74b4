"""What one expert computes, as the eager code of its family does, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F


def run_expert(module: Any, weights: Mapping[str, torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """The expert's answer to the tokens that were routed to it, not yet weighted.

    The module says how its family stores an expert: transposed or not, with biases or without, and how the gate is
    applied. One matrix at a time is brought to the dtype of the states when the model was loaded in another one.

    Shapes: states (tokens, hidden), the result alike.
    """
    inner = _project(module, weights, "gate_up_proj", states)
    if module.is_concatenated:
        gate, up = inner.chunk(2, dim=-1)
        inner = module.act_fn(gate) * up
    else:
        inner = module._apply_gate(inner)
    return _project(module, weights, "down_proj", inner)


def _project(module: Any, weights: Mapping[str, torch.Tensor], name: str, states: torch.Tensor) -> torch.Tensor:
    weight = _as(weights[name], states)
    made = states @ weight if module.is_transposed else F.linear(states, weight)
    return made + _as(weights[f"{name}_bias"], states) if module.has_bias else made


def _as(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return weight if weight.dtype == like.dtype else weight.to(like.dtype)
