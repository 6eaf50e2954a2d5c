"""Trainers that average their weights now and then, with those of an earlier step."""

from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from contracts.trainer import SaveHandle, StepReport, TrainerWorker, WorkerSpec
from examples.plain_trainer import PlainTrainer
from extensions.islands.diloco import DiLoCoTrainer
from trainer_adapters.fsdp import FSDPTrainer


class Averages(PlainTrainer):
    """Every three steps it takes the mean of its weights and those of three steps before."""

    period = 3

    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        self._kept = self._vector()
        self._steps = 0

    def _vector(self) -> torch.Tensor:
        return parameters_to_vector(self._model.parameters()).detach().clone()

    def step(self) -> StepReport:
        report = super().step()
        self._steps += 1
        if self._steps % self.period == 0:
            self._kept = (self._kept + self._vector()) / 2
            vector_to_parameters(self._kept, self._model.parameters())
            self._kept = self._kept.clone()
        return report

    def save(self, directory: Path) -> SaveHandle:
        handle = super().save(directory)
        if self._spec.rank == 0:
            torch.save((self._kept, self._steps), directory / "kept.pt")
        return handle

    def load(self, directory: Path) -> None:
        super().load(directory)
        self._kept, self._steps = torch.load(directory / "kept.pt")


class GoesHalfWay(DiLoCoTrainer):
    """An island without others, which goes half the way of twelve updates, with momentum."""

    inner: type[TrainerWorker] = FSDPTrainer

    def __init__(self) -> None:
        super().__init__(inner=self.inner(), every=12, outer_lr=0.5, outer_momentum=0.9)
