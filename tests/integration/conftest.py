"""The tiny models, for every test of this folder."""

from __future__ import annotations

from support.models import family, mixtral, qwen3_moe

__all__ = ["family", "mixtral", "qwen3_moe"]
