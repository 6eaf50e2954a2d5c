"""Waits for space on a disk before weights are written that must not be lost."""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

POLL_EVERY_S = 1.0
MARGIN = 1 << 20  # bytes for other files
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")

log = logging.getLogger(__name__)


def size_beside_weights(model: str | None) -> int:
    """Returns the bytes of a model's tokenizer and configuration; 0 if `model` is not a directory."""
    entries = Path(model).glob("*") if model else []
    files = [file for file in entries if file.is_file() and file.suffix not in WEIGHTS]
    return sum(file.stat().st_size for file in files)


def wait_for_space(directory: Path, size: int, on_wait: Callable[[], object]) -> None:
    """Waits until the directory's disk has space for `size` bytes. on_wait: called at each check."""
    is_said = False
    while (free := shutil.disk_usage(directory).free) < size + MARGIN:
        if not is_said:
            log.warning(
                "the trained model needs %d bytes, and the disk of %s has %d: waiting for room",
                size + MARGIN,
                directory,
                free,
            )
        is_said = True
        on_wait()
        time.sleep(POLL_EVERY_S)
    if is_said:
        log.warning("%s has room again", directory)
