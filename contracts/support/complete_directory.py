"""Writes a directory atomically: it appears complete or not at all, even if the process is killed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.support.files import sync, sync_tree


@contextmanager
def complete_directory(path: Path) -> Iterator[Path]:
    """Yields a new directory beside `path`, which is renamed to `path` when the block ends.

    `path` is absent or an empty directory. The new directory is removed if the block raises.
    """
    path = path.resolve()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        sync_tree(unfinished)
        os.replace(unfinished, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
