"""Writes files that appear complete or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, and renames it to `path` when the block ends.

    A block that raises leaves `path` as it was, and the temporary file is removed.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
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
