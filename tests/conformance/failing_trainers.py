"""Trainers with a failing rank, which the kit reports."""

import os
import signal
import time
from datetime import timedelta

import torch.distributed as dist

from contracts.trainer import PackedBatch, StepReport, TokenScores, WorkerSpec
from contracts.weights import connected_store, listening_store
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


class RefusesAtOnceOnRankZero(FSDPTrainer):
    """Rank 1 also refuses, after waiting in vain for a key of the store that rank 0 hosts."""

    def init_worker(self, spec: WorkerSpec) -> None:
        make_store = listening_store if spec.rank == 0 else connected_store
        self._store = make_store(spec.master_address, spec.master_port, spec.timeout_s)
        if spec.rank == 0:
            self._store.wait(["rank 1 is here"])
            raise ValueError("no such model")
        self._store.set("rank 1 is here", "")
        try:
            self._store.wait(["nobody sets it"], timedelta(seconds=1))
        except dist.DistNetworkError:
            raise
        except dist.DistStoreError:
            raise ValueError("no such model") from None
