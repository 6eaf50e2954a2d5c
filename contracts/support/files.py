"""Writes files that appear complete or not at all, also when the machine loses its power."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, and renames it to `path` when the block ends.

    The file is on the disk when it gets its name, and so is the name when this returns. A block that raises
    leaves `path` as it was, and the temporary file is removed.
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
    """Writes a file that readers see complete or not at all; replaces an older one of that name.

    `mode` is the permissions of a new file, before the umask.
    """
    with replaced_atomically(path) as unfinished:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode))
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Returns when a file's content, or a directory's names, would outlast a loss of power."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_tree(directory: Path) -> None:
    """Syncs all that lies in a directory, the directory itself, and its own name."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))
    sync(directory.parent)


def remove_unfinished(directory: Path) -> None:
    """Removes what `replaced_atomically` left below a directory when its process was killed.

    No process may be writing there.
    """
    for unfinished in directory.rglob(".*.part"):
        unfinished.unlink()
