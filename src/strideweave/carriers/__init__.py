"""Where values live: carriers in memory and in files, and the handles of their movement."""

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.checkpoint_file import CheckpointFile, Piece
from strideweave.carriers.cpu import CPU
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.generic import Generic
from strideweave.carriers.handle import AwaitMove, AwaitResult

__all__ = ["CPU", "AwaitMove", "AwaitResult", "Carrier", "CheckpointFile", "FileBacked", "Generic", "Piece"]
