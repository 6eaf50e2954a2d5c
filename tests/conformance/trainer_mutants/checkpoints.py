"""Broken trainers of T5."""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from contracts.trainer import PackedBatch, SaveHandle, StepReport, TokenScores
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.fsdp import FSDPTrainer, local_part


class Nothing(SaveHandle):
    def wait(self) -> None:
        pass


@dataclass(frozen=True)
class Together(SaveHandle):
    saving: SaveHandle

    def wait(self) -> None:
        self.saving.wait()
        dist.barrier()


@dataclass(frozen=True)
class Later(SaveHandle):
    save: Callable[[Path], SaveHandle]
    directory: Path

    def wait(self) -> None:
        self.save(self.directory)


@mutant("T5", "after resumed step 1.* is off by|gradient norm of resumed step 2", part="resume")
class ForgetsMomentsOnLoad(FSDPTrainer):
    def load(self, directory: Path) -> None:
        super().load(directory)
        self.reset_optimizer()


@mutant("T5", "learning rate of resumed step 1", part="resume")
class ForgetsTheScheduleOnLoad(FSDPTrainer):
    def load(self, directory: Path) -> None:
        super().load(directory)
        self._closed_steps.zero_()


@mutant("T5", "resumed step 1", part="resume")
class SavesOnlyOnce(FSDPTrainer):
    def save(self, directory: Path) -> SaveHandle:
        return Nothing() if directory.exists() else super().save(directory)


@mutant("T5", "rank . raised|not every rank ended", part="resume", ranks=2)
class WaitsTogether(FSDPTrainer):
    def save(self, directory: Path) -> SaveHandle:
        return Together(super().save(directory))


@mutant("T5", "learning rate of resumed step 1", part="resume")
class SavesWhenWaitedFor(FSDPTrainer):
    def save(self, directory: Path) -> SaveHandle:
        return Later(super().save, directory)


class _Written(SaveHandle):
    def __init__(self, state: dict, directory: Path):
        self._state = copy.deepcopy(state)
        self._directory = directory

    def wait(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        torch.save(self._state, self._directory / "state.pt")


class _Quiet(SaveHandle):
    def __init__(self, saving: SaveHandle):
        self._saving = saving

    def wait(self) -> None:
        with contextlib.suppress(OSError):
            self._saving.wait()


@mutant("T5", "raised .* load|No such file", part="saves")
class LosesASaveThatIsNotWaitedFor(PlainTrainer):
    def save(self, directory: Path) -> SaveHandle:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "closed_steps": self._closed_steps,
        }
        return _Written(state, directory)


@mutant("T5", "could not be written raises nothing", part="saves")
class KeepsQuietAboutAFailedSave(FSDPTrainer):
    def save(self, directory: Path) -> SaveHandle:
        return _Quiet(super().save(directory))


@mutant("T5", "does not fit the model, without an error", part="saves")
class LoadsWhatFits(PlainTrainer):
    def load(self, directory: Path) -> None:
        state = torch.load(directory / "state.pt")
        self._model.load_state_dict(state["model"], strict=False)
        with contextlib.suppress(ValueError):
            self._optimizer.load_state_dict(state["optimizer"])
        self._closed_steps = state["closed_steps"]


@mutant("T5", "learning rate of resumed step 1", part="resume")
class SavesOnlyAppliedSteps(FSDPTrainer):
    _skipped = 0

    def step(self) -> StepReport:
        report = super().step()
        self._skipped += report.skipped
        return report

    def _own_state(self) -> dict[str, torch.Tensor]:
        state = super()._own_state()
        return {**state, "closed_steps": state["closed_steps"] - self._skipped}


@mutant("T5", "after load\\(\\), a log-probability .* with grad=False is off", part="resume")
class ScoresByTheWeightsBeforeTheLoad(FSDPTrainer):
    _before: tuple[torch.Tensor, ...] = ()

    def load(self, directory: Path) -> None:
        self._before = tuple(local_part(p).detach().clone() for _, p in self._trained())
        super().load(directory)

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if grad or not self._before:
            self._before = ()
            return super().forward(batch, grad, entropy)
        own = [local_part(p) for _, p in self._trained()]
        loaded = [tensor.detach().clone() for tensor in own]
        with torch.no_grad():
            torch._foreach_copy_(own, list(self._before))
            scores = super().forward(batch, grad, entropy)
            torch._foreach_copy_(own, loaded)
        return scores
