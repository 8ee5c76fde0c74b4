"""A safetensors file that is planned first and then written one tensor at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from strideweave.checkpoint.header import ITEM_NBYTES, TensorEntry
from strideweave.io import WritableFile, publish

PAGE_NBYTES = 4096
"""The data of a shard begins at a multiple of this, so that large tensors can lie on page borders."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Everything about a safetensors file except the values.

    >>> plan = ShardPlan.of("model.safetensors", [("a", "BF16", (2, 3)), ("b", "U8", ())])
    >>> [(entry.name, entry.offset_nbytes, entry.nbytes) for entry in plan.entries], plan.file_nbytes
    ([('a', 4096, 12), ('b', 4108, 1)], 4109)
    """

    name: str
    """The file's name."""
    entries: tuple[TensorEntry, ...]
    """The tensors, in the order of their bytes."""
    header: bytes
    """The bytes before the data: the length, the JSON, and spaces up to a page border."""

    @staticmethod
    def of(
        name: str,
        tensors: Iterable[tuple[str, str, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
    ) -> ShardPlan:
        """The plan of a file that holds tensors of these names, dtypes and shapes, end to end in order."""
        document: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        facts, end = [], 0
        for tensor, dtype, shape in tensors:
            nbytes = prod(shape) * ITEM_NBYTES[dtype]
            document[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + nbytes]}
            facts.append((tensor, dtype, shape, end, nbytes))
            end += nbytes
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        start = -(-(8 + len(text)) // PAGE_NBYTES) * PAGE_NBYTES
        header = (start - 8).to_bytes(8, "little") + text.ljust(start - 8)
        entries = (TensorEntry(t, dtype, shape, start + begin, n) for t, dtype, shape, begin, n in facts)
        return ShardPlan(name, tuple(entries), header)

    @property
    def file_nbytes(self) -> int:
        """The size of the file."""
        return self.entries[-1].end_nbytes if self.entries else len(self.header)


def write_shard(
    plan: ShardPlan,
    folder: str | os.PathLike[str],
    values: Callable[[TensorEntry], memoryview | Iterable[memoryview]],
    after: Callable[[TensorEntry], None] | None = None,
) -> None:
    """The planned file stands in the folder, whole and on the disk, or nothing does.

    `values` is asked for one tensor's bytes at a time, or for stretches of them, one after the other; `after` is told
    when they are written.
    Errors: StorageError, and whatever the two callables raise; ValueError for bytes of another size than
    planned.

    >>> import pathlib, tempfile
    >>> from strideweave.checkpoint import ShardPlan, read_header, write_shard
    >>> plan = ShardPlan.of("model.safetensors", [("a", "F32", (2,))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_shard(plan, folder, lambda entry: memoryview(bytes(entry.nbytes)))
    ...     list(read_header(pathlib.Path(folder, plan.name)).entries)
    ['a']
    """
    with publish(os.path.join(folder, plan.name)) as temporary, WritableFile(temporary) as file:
        file.reserve(plan.file_nbytes)
        file.write_from([(0, memoryview(plan.header))])
        for entry in plan.entries:
            given = values(entry)
            done = 0
            for memory in [given] if isinstance(given, memoryview) else given:
                done += memory.nbytes
                if done > entry.nbytes:
                    break
                file.write_from([(entry.offset_nbytes + done - memory.nbytes, memory)])
            if done != entry.nbytes:
                raise ValueError(
                    f"cannot write {entry.name!r} to {plan.name}: got {done} bytes, "
                    f"{entry.nbytes} are planned. A tensor has the size that the header tells. Give all of "
                    "it."
                )
            if after is not None:
                after(entry)
