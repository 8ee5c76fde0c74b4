"""How bytes reach storage: exact positioned reads and writes, slabs of memory, lanes to move them on."""

from __future__ import annotations

from strideweave.io.atomic import publish
from strideweave.io.available import available_nbytes
from strideweave.io.descriptors import DEFAULT_DESCRIPTORS, Descriptors
from strideweave.io.errors import ChangedFileError, MissingFileError, StorageError
from strideweave.io.lanes import Job, Lanes, Priority, default_lanes
from strideweave.io.owned_directory import GarbageReport, cache_root, collect_garbage, hold, session_directory
from strideweave.io.slabs import SlabPool
from strideweave.io.source_file import FileIdentity, Fingerprint, SourceFile
from strideweave.io.writable_file import WritableFile

__all__ = [
    "DEFAULT_DESCRIPTORS",
    "ChangedFileError",
    "Descriptors",
    "FileIdentity",
    "Fingerprint",
    "GarbageReport",
    "Job",
    "Lanes",
    "MissingFileError",
    "Priority",
    "SlabPool",
    "SourceFile",
    "StorageError",
    "WritableFile",
    "available_nbytes",
    "cache_root",
    "collect_garbage",
    "default_lanes",
    "hold",
    "publish",
    "session_directory",
]
