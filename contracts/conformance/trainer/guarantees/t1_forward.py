"""T1: packed scores equal an unpacked Hugging Face forward, token for token.

A model that does more than a plain decoder is scored so too, or refused when the worker starts.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.guarantees.t1_scores import (
    Pack,
    Scored,
    check_form,
    check_isolation,
    check_scores,
    cpu,
    tensors,
)
from contracts.conformance.trainer.models import SPECIAL_MODELS
from contracts.conformance.trainer.rank import Refusal
from contracts.conformance.trainer.rank_programs import Tensors, weight_copies
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import LENGTHS, long_lengths, make_sequences
from contracts.conformance.verdicts import GuaranteeError
from contracts.token_fields import TokenField
from contracts.trainer import OptimizerSpec, PackedBatch, TokenScores, WorkerSpec

FIELD = "confidence"
TOKEN_FIELDS = {FIELD: TokenField(dtype="float32", fill=0.0)}
STEP = 3  # any step: scores do not depend on it
LONG_PACK = "more tokens than a block of the backend"


@dataclass(frozen=True)
class Result:
    """The scores of one rank."""

    weights: Tensors
    scored: list[Scored]  # of each pack
    stepped_weights: Tensors  # after a step
    stepped: Scored  # of the first pack, with these weights, before they were gathered


def score(worker: RecordingWorker, spec: WorkerSpec, packs: list[list[Pack]]) -> Result:
    """Returns this rank's scores of each pack, and of the first again after a step."""
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


def check(bench: Bench) -> str:
    """Scores several packs with every model, and compares them with the reference."""
    worst = 0.0
    for number, model in enumerate(bench.models):
        reference = Reference(model)
        packs = _packs(reference, bench)
        if number == 0:
            packs.append(_long_packs(reference, bench))
        doing = f"forward packs of lengths {LENGTHS}, [1], [] and {LONG_PACK}; step; forward again"
        results = bench.session(score, model, OptimizerSpec(lr=1e-3), packs, doing=doing)
        reference.put(results[0].weights)
        for rank, result in enumerate(results):
            for pack, one in zip(packs, result.scored, strict=True):
                check_form(pack[rank], one)
            check_isolation(packs[0][rank], result.scored)
            for pack, one in zip(packs, result.scored, strict=True):
                worst = max(worst, check_scores(reference, pack[rank], one))
        reference.put(results[0].stepped_weights)
        for rank, result in enumerate(results):
            worst = max(worst, check_scores(reference, packs[0][rank], result.stepped, "after a step, "))
    for number, (special, make) in enumerate(SPECIAL_MODELS.items()):
        _check_special(bench, special, make(bench.directory / f"special-{number}"))
    return f"log-probabilities and entropies of every token within {worst:.0e} of the unpacked forward"


def _check_special(bench: Bench, special: str, model: str) -> None:
    """Checks that a model that does more than a plain decoder is scored as it is, or refused at start."""
    reference = Reference(model)
    packs = _packs(reference, bench)[:1]
    doing = f"init_worker with a model that {special}, then forward"
    results = bench.session(score, model, OptimizerSpec(lr=1e-3), packs, doing=doing, may_refuse=True)
    refused = [isinstance(result, Refusal) for result in results]
    if all(refused):
        return
    right = "the scores of the model's own logits, or a ValueError from init_worker on every rank"
    if any(refused):
        rank = refused.index(False)
        raise GuaranteeError(f"a model that {special} is not refused on rank {rank} alone", right, doing)
    reference.put(results[0].weights)
    try:
        check_scores(reference, packs[0][0], results[0].scored[0])
    except GuaranteeError as error:
        wrong = f"a model that {special} is scored wrongly, without an error: {error}"
        raise GuaranteeError(wrong, right, doing) from error


def _packs(reference: Reference, bench: Bench) -> list[list[Pack]]:
    """Returns packs as [pack][rank].

    The second repeats the first one's sequences at odd indices, among other neighbours. In the fourth all
    ranks but the first are idle.
    """
    model = reference.path
    first, other = (_of_every_rank(bench, model, LENGTHS, seed) for seed in (10, 50))
    second = [
        [a if i % 2 else b for i, (a, b) in enumerate(zip(*pair, strict=True))]
        for pair in zip(first, other, strict=True)
    ]
    idle: list[Pack] = [[] for _ in first]
    return [first, second, [pack[2:3] for pack in first], [first[0], *idle[1:]], idle]


def _long_packs(reference: Reference, bench: Bench) -> list[Pack]:
    """Returns packs that are longer than the blocks in which a backend may work."""
    return _of_every_rank(bench, reference.path, long_lengths(bench.options, reference.context), 70)


def _of_every_rank(bench: Bench, model: str, lengths: list[int], seed: int) -> list[Pack]:
    """Returns a pack for each rank; every other rank has the lengths in reverse."""
    return [
        _with_token_fields(make_sequences(model, lengths[:: -1 if rank % 2 else 1], seed + rank))
        for rank in range(bench.ranks)
    ]


def _with_token_fields(pack: Pack) -> Pack:
    return [
        msgspec.structs.replace(
            s, token_fields={FIELD: np.linspace(0, 1, len(s.token_ids), dtype=np.float32)}
        )
        for s in pack
    ]
