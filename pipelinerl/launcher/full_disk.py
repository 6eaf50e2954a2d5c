"""The words for a full disk, which name the run directory instead of a traceback."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.support.files import is_disk_full
from contracts.support.messages import one_line
from pipelinerl.errors import PlanError

LEAST_BYTES = 1 << 20  # a disk with less is full: a record may find no room


@contextmanager
def naming_full_disk(run_dir: Path) -> Iterator[None]:
    """Raises PlanError in the place of the error of writing to a full disk."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise PlanError(_words(Path(error.filename or run_dir))) from error


def told(failure: BaseException, run_dir: Path) -> str:
    """Returns a failure as one line, which says so if the disk of the run is full."""
    line = one_line(failure)
    words = _words(run_dir)
    is_full = shutil.disk_usage(run_dir).free < LEAST_BYTES
    return f"{line}; {words}" if is_full and words not in line else line


def _words(path: Path) -> str:
    return f"the disk of {path} is full: make room there; resume=true goes on with a run that has begun"
