"""Broken trainers of T5 that write their checkpoints in threads."""

import copy
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.trainer import SaveHandle, WorkerSpec
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant

SLOW_S = 1.0  # duration of a write if no other one goes to the same directory


@dataclass(frozen=True)
class _Writing(SaveHandle):
    writing: Future[None]

    def wait(self) -> None:
        self.writing.result()


@mutant("T5", r"weight \(saved last\) of .* is off by", part="saves")
class LeavesTheOlderOfTwoSaves(PlainTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        self._writers = ThreadPoolExecutor()
        self._writings: dict[Path, Future[None]] = {}

    def save(self, directory: Path) -> SaveHandle:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "closed_steps": self._closed_steps,
        }
        former = self._writings.get(directory)
        seconds = 0.0 if former and not former.done() else SLOW_S
        self._writings[directory] = self._writers.submit(_write, copy.deepcopy(state), directory, seconds)
        return _Writing(self._writings[directory])

    def close(self) -> None:
        self._writers.shutdown()
        super().close()


def _write(state: dict[str, object], directory: Path, seconds: float) -> None:
    time.sleep(seconds)
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(state, directory / f"{seconds}.partial")
    (directory / f"{seconds}.partial").replace(directory / "state.pt")
