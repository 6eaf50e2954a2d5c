"""Reads what an interpreter has, from its files: it is not started.

Called by `nccl.py` and `prerequisites.py`. Must not know the configuration.
"""

import re
import shutil
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

PACKAGES = (
    "lib*/{}/site-packages",
    "lib/python3/dist-packages",  # Debian's
    "local/lib/{}/dist-packages",
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
    """Returns where its packages are. A prefix may have those of several versions of Python."""
    found = _found(python)
    version = found.resolve().name
    name = version if VERSIONED.fullmatch(version) else "python3*"
    return [place for pattern in PACKAGES for place in sorted(found.parent.parent.glob(pattern.format(name)))]


def header_directory(python: str) -> Path | None:
    """Returns the directory that should have the interpreter's Python.h, or None if that is not known."""
    if python == sys.executable:
        return Path(sysconfig.get_path("include"))
    real = _found(python).resolve()
    base = real.parent.parent
    is_installed = any(base.glob(f"lib*/{real.name}/os.py"))  # not so for a copy, a shim or a wrapper
    return base / "include" / real.name if is_installed and VERSIONED.fullmatch(real.name) else None


def _found(python: str) -> Path:
    return Path(shutil.which(python) or python).absolute()
