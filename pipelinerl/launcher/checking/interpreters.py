"""Reads what an interpreter has, from its files: it is not started.

Called by `nccl.py` and `prerequisites.py`. Must not know the configuration.
"""

import re
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path

PACKAGES = (
    "lib*/python3*/site-packages",
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",  # Debian's
)
VERSIONED = re.compile(r"python3\.\d+t?")


def installed(python: str, names: tuple[str, ...]) -> tuple[str, str] | None:
    """Returns name and version of the first of these distributions that the interpreter has, or None."""
    path = sys.path if python == sys.executable else [str(place) for place in _packages(python)]
    for name in names:
        for found in distributions(name=name, path=path):
            return name, found.version
    return None


def _packages(python: str) -> list[Path]:
    root = _found(python).parent.parent
    return [place for pattern in PACKAGES for place in sorted(root.glob(pattern))]


def header_directory(python: str) -> Path | None:
    """Returns the directory that should have the interpreter's Python.h, or None if that is not known."""
    real = _found(python).resolve()
    base = real.parent.parent
    is_copy = (base / "pyvenv.cfg").exists()  # of an interpreter that is elsewhere
    return None if is_copy or not VERSIONED.fullmatch(real.name) else base / "include" / real.name


def _found(python: str) -> Path:
    return Path(shutil.which(python) or python).absolute()
