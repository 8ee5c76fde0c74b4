"""What the compiler refuses."""

from __future__ import annotations


class Unsupported(RuntimeError):
    """The card cannot run an operation as it is; the message names it, the facts, the rule and what to do."""
