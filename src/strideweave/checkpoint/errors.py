"""What can be wrong with a checkpoint, one class per thing that its owner would do about it."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint cannot be used as it lies on disk. The message names the file and what to do.

    >>> issubclass(TruncatedShard, CheckpointError) and issubclass(CheckpointError, ValueError)
    True
    """


class TruncatedShard(CheckpointError):
    """A shard ends before its header says that it does: an interrupted download or a full disk.

    >>> from strideweave.checkpoint import CheckpointError, TruncatedShard
    >>> issubclass(TruncatedShard, CheckpointError)
    True
    """


class GarbledHeader(CheckpointError):
    """A shard's header is not what the format allows, or contradicts itself or the size of the file.

    >>> from strideweave.checkpoint import CheckpointError, GarbledHeader
    >>> issubclass(GarbledHeader, CheckpointError)
    True
    """


class MissingShards(CheckpointError):
    """Files that the index names are not there.

    >>> from strideweave.checkpoint import CheckpointError, MissingShards
    >>> issubclass(MissingShards, CheckpointError)
    True
    """


class MissingTensors(CheckpointError):
    """Tensors that somebody asked for are in no shard, or not in the shard that the index names.

    >>> from strideweave.checkpoint import CheckpointError, MissingTensors
    >>> issubclass(MissingTensors, CheckpointError)
    True
    """
