"""The checkpoints of a run on disk.

    RUN_DIR/checkpoints/00000040/worker/          files of the trainer backend
    RUN_DIR/checkpoints/00000040/position.json    written last: the checkpoint is complete
    RUN_DIR/checkpoints/reference/00000020.pt     weights of the reference that rows of step 40 are scored by

A checkpoint contains the offset in `rollouts` from which a resumed run reads. The other state is in the event
streams: started and settled groups, drawn problems, the sampler. Reference weights exist if it is renewed.
"""

import json
import logging
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from contracts.support.files import remove_unfinished, sync, sync_tree, write_atomically

log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class Position:
    version: int
    rollouts_offset: int  # offset in `rollouts`, before every rollout of the steps after `version`


START = Position(version=0, rollouts_offset=0)  # start of a run, which needs no checkpoint


class Checkpoints:
    def __init__(self, run_dir: Path):
        self._directory = run_dir / "checkpoints"

    @property
    def final(self) -> Path:
        """The directory of the Hugging Face model that is exported at the end of the run."""
        return self._directory / "final"

    def size(self) -> int:
        """Returns the bytes of all checkpoints and of the export, complete or not."""
        return sum(file.stat().st_size for file in self._directory.rglob("*") if file.is_file())

    def worker(self, version: int) -> Path:
        """Returns the directory for `TrainerWorker.save` and `load`."""
        return self._of(version) / "worker"

    def _of(self, version: int) -> Path:
        return self._directory / f"{version:08d}"

    def reference(self, version: int) -> Path:
        """Returns the file of the reference's weights from `version`."""
        return self._directory / "reference" / f"{version:08d}.pt"

    def discard_references(self, needed: Collection[int]) -> None:
        for file in self._directory.glob("reference/*.pt"):
            if int(file.stem) not in needed:
                file.unlink()

    def complete_checkpoints(self) -> list[Position]:
        """Returns the positions of the complete checkpoints, oldest first."""
        files = self._directory.glob("*/position.json")
        return sorted(filter(None, map(_read_position, files)))

    def complete(self, position: Position, keep: int) -> Position:
        """Completes the checkpoint at `position`, removes the oldest ones, and returns the oldest kept one.

        Its files are on the disk before its `position.json`, and that before an older one is removed.
        """
        sync_tree(self._of(position.version))
        sync(self._directory.parent)
        file = self._of(position.version) / "position.json"
        write_atomically(file, json.dumps(asdict(position)))
        found = self.complete_checkpoints()
        for old in found[:-keep]:
            self._remove(old.version)
        return found[-keep:][0]

    def discard_after(self, version: int) -> None:
        """Removes checkpoints and references newer than `version`, incomplete ones, and the final export.

        A checkpoint whose `position.json` is damaged is incomplete.
        """
        shutil.rmtree(self.final, ignore_errors=True)
        for position in self.complete_checkpoints():
            if position.version > version:
                self._remove(position.version)
        remove_unfinished(self._directory / "reference")
        for file in self._directory.glob("reference/*.pt"):
            if int(file.stem) > version:
                file.unlink()
        whole = {self._of(position.version) for position in self.complete_checkpoints()}
        for directory in self._directory.glob("[0-9]*"):
            if directory not in whole:
                if (directory / "position.json").exists():
                    log.warning("%s is removed: its position.json is damaged", directory)
                shutil.rmtree(directory)

    def leave_out(self, version: int) -> None:
        """Removes the files of a checkpoint that could not be completed."""
        (self._of(version) / "position.json").unlink(missing_ok=True)
        shutil.rmtree(self._of(version), ignore_errors=True)

    def _remove(self, version: int) -> None:
        (self._of(version) / "position.json").unlink()  # first, so that the rest is incomplete
        shutil.rmtree(self._of(version))


def _read_position(file: Path) -> Position | None:
    """Returns the file's content, or None if it is damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Position)
    except msgspec.DecodeError:
        return None
