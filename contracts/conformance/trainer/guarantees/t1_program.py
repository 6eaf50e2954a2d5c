"""The program that each rank runs in T1: it scores packs, and the first one again after a step."""

from dataclasses import dataclass

import torch

from contracts.conformance.trainer.guarantees.t1_packs import TOKEN_FIELDS
from contracts.conformance.trainer.guarantees.t1_scores import Pack, Scored, cpu, tensors
from contracts.conformance.trainer.rank_programs import Tensors, weight_copies
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.trainer import PackedBatch, TokenScores, WorkerSpec

STEP = 3  # any step: scores do not depend on it


@dataclass(frozen=True)
class Result:
    """The scores of one rank."""

    weights: Tensors
    scored: list[Scored]  # scores of each pack
    stepped_weights: Tensors  # the weights after a step
    stepped: Scored  # scores of the first pack with these weights, computed before they were gathered


def score(worker: RecordingWorker, spec: WorkerSpec, packs: list[list[Pack]]) -> Result:
    """Returns this rank's scores of each pack, and of the first pack again after a step."""
    weights = weight_copies(worker)
    scored = [_score(worker, pack[spec.rank]) for pack in packs]
    worker.step()
    probe = PackedBatch.pack(packs[0][spec.rank], STEP, TOKEN_FIELDS)  # before anything is gathered
    unlearned = worker.forward(probe, grad=False, entropy=True)
    learned = worker.forward(probe, entropy=True)
    stepped = Scored(cpu(worker.forward(probe, grad=False)), cpu(unlearned), cpu(learned), [], [])
    return Result(weights, scored, weight_copies(worker), stepped)


def _score(worker: RecordingWorker, pack: Pack) -> Scored:
    batch = PackedBatch.pack(pack, STEP, TOKEN_FIELDS)
    bare = worker.forward(batch, grad=False)
    probe = worker.forward(batch, grad=False, entropy=True)
    scores = worker.forward(batch, entropy=True)
    worker.backward(scores.logprobs.sum())
    wrong = [*_wrong_gradients(False, bare, probe), *_wrong_gradients(True, scores)]
    changed = _changed(batch, PackedBatch.pack(pack, STEP, TOKEN_FIELDS))
    return Scored(cpu(bare), cpu(probe), cpu(scores), wrong, changed)


def _wrong_gradients(grad: bool, *scored: TokenScores) -> list[str]:
    return [
        f"{name} has {'no' if grad else 'a'} gradient with grad={grad}"
        for scores in scored
        for name, tensor in tensors(scores).items()
        if tensor.requires_grad != grad
    ]


def _changed(batch: PackedBatch, packed: PackedBatch) -> list[str]:
    found = vars(batch) | batch.token_fields
    right = vars(packed) | packed.token_fields
    packed_tensors = {name: tensor for name, tensor in right.items() if isinstance(tensor, torch.Tensor)}
    return [name for name, tensor in packed_tensors.items() if not torch.equal(found[name], tensor)]
