"""Where values live: carriers in memory, in files and on devices, and the handles of their movement."""

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.checkpoint_file import CheckpointFile, Piece
from strideweave.carriers.cpu import CPU
from strideweave.carriers.cuda import CUDA
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.generic import Generic
from strideweave.carriers.handle import AwaitMove, AwaitResult
from strideweave.carriers.metal import Metal

__all__ = [
    "CPU",
    "CUDA",
    "AwaitMove",
    "AwaitResult",
    "Carrier",
    "CheckpointFile",
    "FileBacked",
    "Generic",
    "Metal",
    "Piece",
]
