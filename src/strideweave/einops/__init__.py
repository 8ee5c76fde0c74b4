"""Descriptions such as `"a (b c) -> b a"`: modes by name, parsed once, and what they mean for given shapes.

The first symbol of a group varies fastest, as everywhere in StrideWeave.
"""

from strideweave.einops.functions import einsum, rearrange, reduce
from strideweave.einops.planning import EinsumPlan as EinsumPlan
from strideweave.einops.planning import ReducePlan as ReducePlan
from strideweave.einops.planning import plan_einsum as plan_einsum
from strideweave.einops.planning import plan_reduce as plan_reduce
from strideweave.einops.planning import rearranged as rearranged
from strideweave.einops.planning import split_modes as split_modes
from strideweave.einops.references import LayoutReference, parse_layout_ref
from strideweave.einops.specs import (
    EinsumSpec,
    RearrangeSpec,
    ReduceSpec,
    parse_einsum,
    parse_rearrange,
    parse_reduce,
)
from strideweave.einops.tokens import Token, TokenKind, lex

__all__ = [
    "EinsumSpec",
    "LayoutReference",
    "RearrangeSpec",
    "ReduceSpec",
    "Token",
    "TokenKind",
    "einsum",
    "lex",
    "parse_einsum",
    "parse_layout_ref",
    "parse_rearrange",
    "parse_reduce",
    "rearrange",
    "reduce",
]
