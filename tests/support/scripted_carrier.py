"""The fault-injecting carrier of `strideweave.testing`, under the name that the tests of this project grew up with."""

from __future__ import annotations

from strideweave.testing.faulty import PATIENCE_S, FaultyCarrier, Hold

__all__ = ["PATIENCE_S", "Hold", "ScriptedCarrier"]


class ScriptedCarrier(FaultyCarrier):
    """Values in memory that only runs can reach, and calls that fail by ordinal."""
