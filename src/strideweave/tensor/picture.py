"""A Tensor as HTML, for notebooks: its facts in a table, and what its carrier draws below."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strideweave.tensor.tensor import Tensor


def draw_tensor(tensor: Tensor) -> str:
    """HTML of what is known without a value: shape, Layout, dtype, carrier, gradient; no script, no data."""
    carrier = tensor.carrier
    facts = {
        "shape": repr(tensor.shape),
        "dtype": repr(tensor.dtype()),
        "layout": repr(tensor.layout),
        "offset": str(tensor.offset),
        "carrier": repr(carrier),
    }
    if tensor.requires_grad:
        facts["gradient"] = "wanted" if tensor.is_leaf else f"by {tensor.autograd_ctx!r}"
    cell = 'style="text-align:left"'
    rows = "".join(f"<tr><th {cell}>{name}</th><td {cell}>{escape(fact)}</td></tr>" for name, fact in facts.items())
    return f"<div><table><tbody>{rows}</tbody></table>{carrier._html_of_values() or ''}</div>"
