"""Writes files atomically and durably, even if the machine loses power or the disk is full."""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, and renames it to `path` when the block ends.

    The content is synced before the rename, and the directory after it. If the block raises, `path` is
    unchanged and the temporary file is removed.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        sync(unfinished)
        os.replace(unfinished, path)
        sync(path.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Writes a file atomically, and replaces an existing one. `mode`: its permissions before the umask."""
    with replaced_atomically(path) as unfinished:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode))
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


def append_whole(file: io.FileIO, data: bytes | bytearray, end: int) -> None:
    """Appends `data` to an unbuffered file of `end` bytes. Truncates the file to `end` if writing fails.

    No view of `data` outlives the call, so a bytearray can be resized afterwards.
    """
    written = 0
    try:
        while written < len(data):
            with memoryview(data) as whole, whole[written:] as rest:
                written += file.write(rest)
    except OSError:
        file.truncate(end)
        raise


def is_disk_full(error: BaseException) -> bool:
    """Returns True if the error, or one of its causes, is ENOSPC or EDQUOT."""
    causes: list[BaseException] = []
    following: BaseException | None = error
    while following and following not in causes:
        causes.append(following)
        following = following.__cause__ or following.__context__
    return any(isinstance(cause, OSError) and cause.errno in DISK_FULL for cause in causes)


def sync(path: Path) -> None:
    """Calls fsync on a file or directory."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_tree(directory: Path) -> None:
    """Syncs everything in a directory, the directory itself, and its own name."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))
    sync(directory.parent)


def remove_unfinished(directory: Path) -> None:
    """Removes the temporary files of `replaced_atomically` that killed processes left below a directory.

    No process may be writing there.
    """
    for unfinished in directory.rglob(".*.part"):
        unfinished.unlink()
