"""Safetensors checkpoints: found, proven, and read tensor by tensor with exact positioned reads."""

from __future__ import annotations

from strideweave.checkpoint.checkpoint import Checkpoint, Located
from strideweave.checkpoint.errors import (
    CheckpointError,
    GarbledHeader,
    MissingShards,
    MissingTensors,
    TruncatedShard,
)
from strideweave.checkpoint.header import Header, TensorEntry, read_header
from strideweave.checkpoint.shard_writer import ShardPlan, write_shard

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "GarbledHeader",
    "Header",
    "Located",
    "MissingShards",
    "MissingTensors",
    "ShardPlan",
    "TensorEntry",
    "TruncatedShard",
    "read_header",
    "write_shard",
]
