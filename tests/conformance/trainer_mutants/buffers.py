"""Broken trainers of models that have buffers."""

from pathlib import Path

from contracts.trainer import WorkerSpec
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant


@mutant(
    "T1",
    "has scalars of its layers in buffers is scored wrongly, .* on rank 1, logprob",
    part="special-models",
    ranks=2,
)
class KeepsBuffersOfItsRank(PlainTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        for name, buffer in self._model.named_buffers():
            if spec.rank > 0 and "scalar" in name:
                buffer.fill_(1.0)


@mutant("T4", "the export loads with a warning, missing_keys: model.layers.0.layer_scalar", part="buffers")
class ExportsNoBuffers(PlainTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        self._model.save_pretrained(directory, state_dict=dict(self._model.named_parameters()))
