"""Broken trainers of T8."""

from tests.conformance.trainer_mutants.checkpoints import Later
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.hugging_face_trainer import MOMENTS


@mutant("T8", "66.* of .* bytes stay", part="memory")
class KeepsItsMomentsOnTheDevice(FSDPTrainer):
    def _held(self):
        return iter([parameter for _, parameter in self._trained()])


@mutant("T8", "bytes stay on rank 1", part="memory", ranks=2)
class OffloadsOnRankZeroAlone(FSDPTrainer):
    def offload(self):
        if self._spec.rank == 0:
            super().offload()


@mutant("T8", "off by|gradient norm", part="exact")
class RoundsItsMoments(FSDPTrainer):
    def onload(self):
        super().onload()
        for state in self._optimizer.state.values():
            for name in MOMENTS:
                state[name].copy_(state[name].bfloat16())


@mutant("T8", "off by|gradient norm", part="exact")
class CountsItsStepsAnew(FSDPTrainer):
    def onload(self):
        super().onload()
        for state in self._optimizer.state.values():
            state["step"].zero_()


@mutant("T8", "rank 0 (raised|was killed)|weight .loaded", part="saves")
class WritesASaveWhenItIsWaitedFor(FSDPTrainer):
    def save(self, directory):
        return Later(super().save, directory)
