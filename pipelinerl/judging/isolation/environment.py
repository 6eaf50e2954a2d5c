"""The environment variables, descriptors and readable paths of a worker."""

import os
import sys
import sysconfig
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

KEPT = ("PATH", "LANG", "PYTHONPATH")
FIXED = {
    "HOME": "/nonexistent",
    "OMP_NUM_THREADS": "1",  # a library that starts threads when it is imported cannot be confined
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
SYSTEM = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/usr/share/zoneinfo",
    "/usr/share/locale",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
)


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns a minimal environment: search paths, locale, fixed settings, and `extra`."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {"PATH": os.defpath} | kept | FIXED | dict(extra)


def imported_paths() -> list[str]:
    """Returns the paths of Python, the system's libraries and the imported packages.

    Directories on PYTHONPATH are not included themselves, because they may contain other files, such as a
    run's.
    """
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    own = {path for module in list(sys.modules.values()) if (path := _package_path(module))}
    beneath = [*prefixes, *SYSTEM]
    own = {path for path in own if not any(Path(path).is_relative_to(prefix) for prefix in beneath)}
    return sorted({path for path in (*prefixes, *SYSTEM, *own) if os.path.exists(path)})


def close_all_but(kept: set[int]) -> None:
    """Closes every file descriptor of this process, except those given."""
    ends = [-1, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
    for before, after in pairwise(ends):
        if before + 1 < after:  # closerange treats an empty range as an unbounded one
            os.closerange(before + 1, after)


def _package_path(module: object) -> str | None:
    """Returns the directory of a top-level package, or the file of a top-level module."""
    name = getattr(module, "__name__", "")
    file = getattr(module, "__file__", None)
    if not file or "." in name or name == "__main__":
        return None
    return str(Path(file).parent) if Path(file).stem == "__init__" else str(file)
