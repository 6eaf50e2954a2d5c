"""Broken trainers of T9."""

import random

import torch
import torch.distributed as dist

from contracts.trainer import WorkerSpec
from examples.plain_trainer import PlainTrainer
from tests.conformance.sharing_trainers import SharesOutItsReplicas
from tests.conformance.trainer_mutants.low_rank import Adapted
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.deepspeed import DeepSpeedTrainer
from trainer_adapters.fsdp import FSDPTrainer, local_part


@mutant("T9", r"after adopt\(\), the log-probability of token", part="shards", needs_deepspeed=True)
class ForgetsToPublishItsMasters(DeepSpeedTrainer):
    """Computes with the weights before they were adopted, and gathers those after."""

    def adopt(self) -> None:
        pass


@mutant("T9", r"after adopt\(\), the log-probability of token", part="shards", ranks=2)
class ComputesWithWhatIsGathered(FSDPTrainer):
    """Keeps embedding and head as a forward before `adopt` has left them."""

    def adopt(self) -> None:
        pass


@mutant("T9", r"after adopt\(\), the log-probability of token .* on rank 1", part="shards", ranks=2)
class AdoptsOnRank0Alone(SharesOutItsReplicas):
    def _put(self, weights: torch.Tensor) -> None:
        if self._spec.rank == 0:
            super()._put(weights)


@mutant("T9", r"update after adopt\(\) of .* is off by", part="shards")
class ForgetsMomentsInAdopt(FSDPTrainer):
    def adopt(self) -> None:
        super().adopt()
        self.reset_optimizer()


@mutant("T9", r"after adopt\(\), rank 0 reports the learning rate", part="shards")
class BeginsItsScheduleAnewInAdopt(FSDPTrainer):
    def adopt(self) -> None:
        super().adopt()
        self._closed_steps.zero_()


@mutant("T9", "elements of .* are in no shard, or a write to it is lost", part="shards")
class GivesCopies(FSDPTrainer):
    def shards(self) -> list[torch.Tensor]:
        return [shard.clone() for shard in super().shards()]


@mutant("T9", "elements of model.norm.weight are in no shard", part="shards")
class LeavesOutTheLastNorm(FSDPTrainer):
    def shards(self) -> list[torch.Tensor]:
        return [local_part(p).detach() for name, p in self._trained() if name != "model.norm.weight"]


@mutant("T9", "the values on rank 0 are as before", part="shards")
class LeavesOutTheValueHead(FSDPTrainer):
    def __init__(self) -> None:
        super().__init__(value_head=True)

    def shards(self) -> list[torch.Tensor]:
        return [local_part(p).detach() for name, p in self._trained() if not name.startswith("value_head")]


@mutant(
    "T9",
    "rank 1 has elements in its shards .* that are in no gathered weight and not 0",
    part="shards",
    ranks=2,
)
class GivesEverythingOnEveryRank(PlainTrainer):
    def shards(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self._model.parameters()]

    def adopt(self) -> None:
        for parameter in self._model.parameters():
            dist.broadcast(parameter.detach(), src=0)


@mutant("T9", "the elements of .* have another place", part="shards")
class OrdersItsShardsByChance(FSDPTrainer):
    """Sorts them by size, and those of one size by chance."""

    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        shards = list(enumerate(super().shards()))
        random.SystemRandom().shuffle(shards)
        self._places = [place for place, shard in sorted(shards, key=lambda item: item[1].numel())]

    def shards(self) -> list[torch.Tensor]:
        shards = super().shards()
        return [shards[place] for place in self._places]


@mutant("T9", "in new processes, on rank 0, shard 0 has .* elements, and later", part="shards")
class CutsItsShardsByItsSeed(FSDPTrainer):
    def shards(self) -> list[torch.Tensor]:
        first, *others = super().shards()
        cut = 1 + self._spec.seed
        return [first.flatten()[:cut], first.flatten()[cut:], *others]


@mutant("T9", "has no factors, and differs from the checkpoint", part="shards")
class GivesFrozenWeightsToo(Adapted):
    def shards(self) -> list[torch.Tensor]:
        return [local_part(parameter).detach() for parameter in self._model.parameters()]
