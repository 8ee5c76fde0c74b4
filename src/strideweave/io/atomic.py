"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from strideweave.io.errors import StorageError
from strideweave.io.owned_directory import hold

# Looked up at each call so that tests can make the n-th fail.
_fsync = os.fsync
_replace = os.replace


@contextmanager
def publish(
    path: str | os.PathLike[str], directory: str | os.PathLike[str] | None = None, *, is_folder: bool = False
) -> Iterator[Path]:
    """A temporary path to fill; when the block ends well, what is there is at `path`, whole and on the disk.

    The temporary is made beside `path`, or in `directory`, empty: a file, or a folder if `is_folder`. A file
    that was at `path` is replaced in one step; whoever has it open keeps the old one. On any exception,
    KeyboardInterrupt too, the temporary is removed and `path` is as it was.

    Errors: StorageError when the temporary cannot be made, written through or moved.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = pathlib.Path(folder, "config.json")
    ...     with publish(target) as temporary:
    ...         _ = temporary.write_text("{}")
    ...         is_there_early = target.exists()
    ...     is_there_early, target.read_text(), len(list(target.parent.iterdir()))
    (False, '{}', 1)
    """
    final = Path(os.path.abspath(path))
    parent = final.parent if directory is None else Path(os.path.abspath(directory))
    staging = parent / f".{final.name[:180]}.{token_hex(6)}.partial"
    with _told("publish", final):
        _require_possible(final, parent, is_folder)
    try:
        with _told("make a temporary for", final):
            if is_folder:
                staging.mkdir()
            else:
                os.close(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        with hold(staging):
            yield staging
            with _told("publish", final):
                _sync_whole(staging)
                _replace(staging, final)
    except BaseException:
        _remove(staging)
        raise
    with _told("make sure of the name of", final):
        _sync(final.parent)


@contextmanager
def _told(what: str, final: Path) -> Iterator[None]:
    """Errors of the system inside the block are StorageErrors that name the file."""
    try:
        yield
    except StorageError:
        raise
    except OSError as e:
        raise StorageError(
            f"cannot {what} {str(final)!r}: {e.strerror}. A file is published only when all of it is on the "
            "disk. Check the directory, its permissions and the room on the disk, and try again.",
            path=final,
            errno=e.errno,
        ) from e


def _require_possible(final: Path, parent: Path, is_folder: bool) -> None:
    """What would fail at the end fails before the work is done."""
    if final.parent.stat().st_dev != parent.stat().st_dev:
        raise OSError(errno.EXDEV, f"{str(parent)!r} is on another file system")
    if final.is_dir() and not final.is_symlink() and not (is_folder and not any(final.iterdir())):
        raise OSError(errno.EEXIST, "a folder is there already")


def _sync_whole(path: Path) -> None:
    """The file, or everything in the folder, is on the disk; names after what they name."""
    if path.is_dir():
        for child in path.iterdir():
            if not child.is_symlink():
                _sync_whole(child)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
