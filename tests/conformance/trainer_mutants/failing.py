"""Trainers of which a rank fails. They are no mutants: the kit reports their ranks."""

import os
import signal
import time

from contracts.trainer import PackedBatch, StepReport, TokenScores, WorkerSpec
from trainer_adapters.fsdp import FSDPTrainer


class Raises(FSDPTrainer):
    def step(self) -> StepReport:
        if self._spec.rank == 1:
            raise RuntimeError("no more gradients")
        return super().step()


class Dies(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if self._spec.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch, grad, entropy)


class Hangs(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        time.sleep(3600)
