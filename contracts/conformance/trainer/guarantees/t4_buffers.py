"""The part of T4 for buffers: an export has those with which the trainer scores."""

from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.guarantees.t1_scores import TOLERANCE, cpu
from contracts.conformance.trainer.guarantees.t4_export import DOING, load_export
from contracts.conformance.trainer.models import with_buffers
from contracts.conformance.trainer.rank import Refusal
from contracts.conformance.trainer.rank_programs import Tensors, accumulate, weight_copies
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import LENGTHS, Step, make_sequences, split_evenly
from contracts.conformance.verdicts import GuaranteeError
from contracts.trainer import OptimizerSpec, PackedBatch, TokenScores, WorkerSpec


@dataclass(frozen=True)
class Exported:
    """The observations of one rank after a step."""

    weights: Tensors
    scores: TokenScores  # of all sequences of the step


def export(worker: RecordingWorker, spec: WorkerSpec, step: Step, directory: Path) -> Exported:
    """Makes a step and exports. Returns the weights and the scores that the trainer then has."""
    accumulate(worker, spec, step)
    worker.step()
    worker.export(directory)
    scores = worker.forward(PackedBatch.pack(step.sequences), grad=False)
    return Exported(weight_copies(worker), cpu(scores))


def buffers(bench: Bench) -> str:
    """Exports a model with buffers, and scores with the weights of the trainer and the export's buffers."""
    model = with_buffers(bench.directory / "buffers")
    directory = bench.directory / "export-buffers"
    step = Step("a model with buffers", split_evenly(make_sequences(model, LENGTHS, seed=4), bench.ranks))
    results = bench.session(
        export, model, OptimizerSpec(lr=1e-2), step, directory, doing=DOING, may_refuse=True
    )
    if any(isinstance(result, Refusal) for result in results):  # T1 checks that all ranks do
        return "a model with buffers is refused"
    load_export(directory)
    reference = Reference(str(directory))
    reference.put(results[0].weights)
    with torch.no_grad():
        right = reference.scores(step.sequences).logprobs
    for rank, result in enumerate(results):
        if not (error := (result.scores.logprobs - right).abs().max()) <= TOLERANCE:
            raise GuaranteeError(
                f"rank {rank} scores a token {error:.2g} nats from the export with the same weights",
                "an export with the buffers of the trainer",
                DOING,
            )
    return "an export has the model's buffers"
