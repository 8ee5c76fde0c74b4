"""What happens when a core would leave its window, or memory would be touched that nobody has."""

from __future__ import annotations


class DeviceTrap(RuntimeError):
    """A core would touch addresses further apart than its window is wide; nothing has been written.

    The message names the operation, the core, the operand, the addresses and the limit.
    """

    def __init__(self, op: str, core: int, number: int, name: str, begin: int, nbytes: int, limit: int) -> None:
        super().__init__(
            f"cannot run {op}: core {core} touches {nbytes} bytes ({nbytes / 2**20:.1f} MiB) of operand {number}"
            f"{f' ({name})' if name else ''}, from byte {begin} of it on. A core's window is {limit} bytes "
            f"({limit / 2**20:.1f} MiB). Run it in tiles, or divide it over more cores."
        )
        self.op, self.core, self.operand, self.begin, self.nbytes, self.limit = op, core, number, begin, nbytes, limit
