"""The one directory that everything we write lives in, and how it is kept clean."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex

from strideweave.io.errors import StorageError

_OWNER_FILE = "owner.json"
_SESSION_NAME = re.compile(r"(?P<pid>\d+)-[0-9a-f]{12}")
_UNTOLD_GRACE_S = 3600.0


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What was removed, or would be. Units: bytes of disk.

    >>> GarbageReport(removed=(), nbytes=0)
    GarbageReport(removed=(), nbytes=0)
    """

    removed: tuple[Path, ...]
    """The directories and files, whole."""
    nbytes: int
    """The disk space that they took."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that owns a session directory, told so that a later one with its number is not."""

    pid: int
    start_ticks: int | None
    boot: str
    pid_namespace: str
    host: str

    @staticmethod
    def here() -> _Owner:
        boot, namespace = "", ""
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        with contextlib.suppress(OSError):
            namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - the link's text is no path
        pid = os.getpid()
        return _Owner(pid, _start_ticks(pid), boot, namespace, socket.gethostname())

    @staticmethod
    def read(descriptor: int) -> _Owner | None:
        try:
            return _Owner(**json.loads(os.pread(descriptor, 4096, 0)))
        except (ValueError, TypeError):
            return None

    def may_live(self, *, does_lock_tell: bool) -> bool:
        """Whether the process may still run, without a lock: all we see of another container."""
        here = _Owner.here()
        if self.boot != here.boot:
            return self.host != here.host  # the same machine before it was started again: nothing lives
        if self.pid_namespace != here.pid_namespace:
            return not does_lock_tell
        return _is_running(self.pid) and _start_ticks(self.pid) == self.start_ticks


@dataclass(frozen=True, slots=True)
class _Session:
    path: Path
    lock: int
    """An open descriptor of the owner file. Its lock goes with the process, whatever ends it."""


_sessions: dict[Path, _Session] = {}
_lock = threading.Lock()  # guards _sessions


def cache_root() -> Path:
    """The absolute path below which everything is written: STRIDEWEAVE_CACHE_DIR, or the platform's cache.

    It may not be there yet.

    >>> cache_root().is_absolute()
    True
    """
    named = os.environ.get("STRIDEWEAVE_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/strideweave").expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path("~/.cache").expanduser()) / "strideweave"


def session_directory() -> Path:
    """The directory of this process: made when first asked for, removed at exit.

    A forked child has one of its own. Making one removes those of processes that died without cleaning up.
    Errors: StorageError when it cannot be made.

    >>> session_directory() == session_directory()
    True
    """
    root = cache_root()
    with _lock:
        session = _sessions.get(root)
        if session is not None and not session.path.is_dir():  # somebody emptied the cache
            os.close(session.lock)
            session = None
        if session is None:
            session = _sessions[root] = _make_session(root)
            _collect(_dead_sessions(root), dry_run=False)
        return session.path


def collect_garbage(dry_run: bool = False) -> GarbageReport:
    """Nothing is left of processes that died: no session directory, no `*.partial` that nobody holds.

    With `dry_run` nothing is removed and the report says what would be.
    """
    root = cache_root()
    sessions = _collect(_dead_sessions(root), dry_run=dry_run)
    leftovers = _collect(_free_partials(root), dry_run=dry_run)
    return GarbageReport(sessions.removed + leftovers.removed, sessions.nbytes + leftovers.nbytes)


@contextmanager
def hold(path: str | os.PathLike[str]) -> Iterator[None]:
    """The file or directory counts as in use while the block runs: no `collect_garbage` anywhere removes it.

    Errors: StorageError when another process or thread holds it, or when it is not there.
    """
    where = os.fspath(path)
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise StorageError(
            f"cannot hold {where!r}: {e.strerror}. Only what is there can be held. Make it first.",
            path=where,
            errno=e.errno,
        ) from e
    try:
        if _try_lock(descriptor) is False or not _is_still_at(where, descriptor):
            raise StorageError(
                f"cannot hold {where!r}: another process works on it. One at a time may. Wait for it.",
                path=where,
            )
        yield
    finally:
        os.close(descriptor)


def _make_session(root: Path) -> _Session:
    path = root / "tmp" / f"{os.getpid()}-{token_hex(6)}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        lock = os.open(path / _OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise StorageError(
            f"cannot make {str(path)!r} for temporary files: {e.strerror}. All that is written goes below "
            f"{str(root)!r}. Make that directory writable, or set STRIDEWEAVE_CACHE_DIR to one that is.",
            path=path,
            errno=e.errno,
        ) from e
    _try_lock(lock)  # before it is written: what is told is locked
    os.write(lock, json.dumps(asdict(_Owner.here())).encode())
    return _Session(path, lock)


def _try_lock(descriptor: int) -> bool | None:
    """Whether we hold the lock now; None on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_still_at(path: str | Path, descriptor: int) -> bool:
    """Whether the path leads to what was opened: it may be removed or replaced before we have the lock."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116 - as for the descriptor
    except OSError:
        return False


def _dead_sessions(root: Path) -> Iterator[Path]:
    """Each session directory whose process is gone, locked against other collectors until the next one."""
    for path in _entries(root / "tmp"):
        match = _SESSION_NAME.fullmatch(path.name)
        if match is None or path.is_symlink():
            continue
        try:
            descriptor = os.open(path / _OWNER_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it is being made, or its removal was cut short
            if not _untold_may_live(path, int(match["pid"])):
                yield path
            continue
        try:
            if _is_dead(path, int(match["pid"]), descriptor):
                yield path
        finally:
            os.close(descriptor)


def _is_dead(path: Path, pid: int, owner_file: int) -> bool:
    is_locked_by_us = _try_lock(owner_file)
    if is_locked_by_us is False or not _is_still_at(path / _OWNER_FILE, owner_file):
        return False  # whoever holds it lives, or is removing it, or has just removed it
    owner = _Owner.read(owner_file)
    if owner is None:
        return not _untold_may_live(path, pid)
    return not owner.may_live(does_lock_tell=is_locked_by_us is True)


def _free_partials(root: Path) -> Iterator[Path]:
    """Each `*.partial` below the root that nobody holds, locked until the next one."""
    pending = [root]
    while pending:
        for path in _entries(pending.pop()):
            if path.is_symlink() or path == root / "tmp":
                continue
            if path.suffix != ".partial":
                if path.is_dir():
                    pending.append(path)
                continue
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                # Without locks nobody can tell: it stays. What took its place meanwhile may be in use.
                if _try_lock(descriptor) and _is_still_at(path, descriptor):
                    yield path
            finally:
                os.close(descriptor)


def _collect(garbage: Iterator[Path], *, dry_run: bool) -> GarbageReport:
    removed, nbytes = [], 0
    for path in garbage:
        size = _disk_nbytes(path)
        if dry_run or _remove(path):
            removed.append(path)
            nbytes += size
    return GarbageReport(tuple(removed), nbytes)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _untold_may_live(path: Path, pid: int) -> bool:
    """Without a readable owner file only the process number and the age can tell."""
    try:
        return _is_running(pid) or time.time() - path.stat().st_mtime < _UNTOLD_GRACE_S
    except FileNotFoundError:
        return True


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _stat_fields(pid)[:1] not in (["Z"], ["X"])  # dead, and its parent has not looked yet


def _start_ticks(pid: int) -> int | None:
    """When the process started, in ticks since the machine did; None where that is not told."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name, which may hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _disk_nbytes(path: Path) -> int:
    total = 0
    for at in [path, *(path.rglob("*") if path.is_dir() else ())]:
        with contextlib.suppress(OSError):
            facts = at.lstat()
            total += facts.st_blocks * 512
    return total


def _remove(path: Path) -> bool:
    """The path is not there any more; False when something of it could not be removed."""
    if path.is_dir():
        for _ in range(3):  # a thread that is being ended may add a last file
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                return True
        return False
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _end_sessions() -> None:
    for session in _sessions.values():
        _remove(session.path)
        with contextlib.suppress(OSError):
            os.close(session.lock)
    _sessions.clear()


def _forget_in_child() -> None:
    """The directories belong to the parent. Its locks must not live on in us."""
    global _lock
    _lock = threading.Lock()
    for session in _sessions.values():
        with contextlib.suppress(OSError):
            os.close(session.lock)
    _sessions.clear()


atexit.register(_end_sessions)
os.register_at_fork(after_in_child=_forget_in_child)
