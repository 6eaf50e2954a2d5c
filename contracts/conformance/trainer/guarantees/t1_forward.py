"""T1: packed scores equal an unpacked Hugging Face forward, token for token.

A model that does more to its logits than its head is scored so too, or refused when the worker starts.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from contracts.conformance.tiny_model import make_scaled_model
from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.rank_programs import Tensors, weight_copies
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import LENGTHS, make_sequences
from contracts.conformance.verdicts import GuaranteeError
from contracts.records import TrainingSequence
from contracts.token_fields import TokenField
from contracts.trainer import OptimizerSpec, PackedBatch, TokenScores, WorkerSpec

REFUSED = re.compile(r"raised in init_worker\(\): ValueError")
TOLERANCE = 1e-4  # nats, absolute: float32 attention and softmax may sum in another order
FIELD = "confidence"
TOKEN_FIELDS = {FIELD: TokenField(dtype="float32", fill=0.0)}
STEP = 3  # any step: scores do not depend on it
Pack = list[TrainingSequence]


@dataclass(frozen=True)
class Scored:
    """The scores of one pack on one rank, with each combination of options that is checked."""

    bare: TokenScores  # grad=False, entropy=False
    probe: TokenScores  # grad=False, entropy=True
    scores: TokenScores  # grad=True, entropy=True
    wrong_gradients: list[str]  # descriptions of scores whose requires_grad is wrong
    changed: list[str]  # names of the batch's tensors that forward has changed


def score(worker: RecordingWorker, spec: WorkerSpec, packs: list[list[Pack]]) -> tuple[Tensors, list[Scored]]:
    """Returns this rank's weights, and its scores of each pack."""
    weights = weight_copies(worker)
    scored = []
    for pack in packs:
        batch = PackedBatch.pack(pack[spec.rank], STEP, TOKEN_FIELDS)
        bare = worker.forward(batch, grad=False)
        probe = worker.forward(batch, grad=False, entropy=True)
        scores = worker.forward(batch, entropy=True)
        worker.backward(scores.logprobs.sum())
        wrong = [*_wrong_gradients(False, bare, probe), *_wrong_gradients(True, scores)]
        changed = _changed(batch, PackedBatch.pack(pack[spec.rank], STEP, TOKEN_FIELDS))
        scored.append(Scored(_cpu(bare), _cpu(probe), _cpu(scores), wrong, changed))
    return weights, scored


def _wrong_gradients(grad: bool, *scored: TokenScores) -> list[str]:
    return [
        f"{name} has {'no' if grad else 'a'} gradient with grad={grad}"
        for scores in scored
        for name, tensor in _tensors(scores).items()
        if tensor.requires_grad != grad
    ]


def _changed(batch: PackedBatch, packed: PackedBatch) -> list[str]:
    found = vars(batch) | batch.token_fields
    right = vars(packed) | packed.token_fields
    tensors = {name: tensor for name, tensor in right.items() if isinstance(tensor, torch.Tensor)}
    return [name for name, tensor in tensors.items() if not torch.equal(found[name], tensor)]


def _tensors(scores: TokenScores) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in vars(scores).items() if tensor is not None}


def _cpu(scores: TokenScores) -> TokenScores:
    return TokenScores(**{name: tensor.detach().cpu() for name, tensor in _tensors(scores).items()})


def check(bench: Bench) -> str:
    """Scores several packs with every model, and compares them with the reference."""
    worst = 0.0
    for model in bench.models:
        packs = _packs(model, bench.ranks)
        results = bench.session(
            score,
            model,
            OptimizerSpec(lr=1e-3),
            packs,
            doing=f"forward packs of lengths {LENGTHS}, [1] and []",
        )
        reference = Reference(model)
        reference.put(results[0][0])
        for rank, (_, scored) in enumerate(results):
            for pack, one in zip(packs, scored, strict=True):
                _check_form(pack[rank], one)
            _check_isolation(packs[0][rank], scored)
            for pack, one in zip(packs, scored, strict=True):
                worst = max(worst, _check_scores(reference, pack[rank], one))
    _check_own_logits(bench)
    return f"log-probabilities and entropies of every token within {worst:.0e} of the unpacked forward"


def _check_own_logits(bench: Bench) -> None:
    """Checks that a model which divides its logits is scored as it is, or refused at start."""
    model = make_scaled_model(bench.directory / "scaled")
    packs = _packs(model, bench.ranks)[:1]
    doing = "init_worker with a model that divides its logits by 4, then forward"
    try:
        results = bench.session(score, model, OptimizerSpec(lr=1e-3), packs, doing=doing)
    except GuaranteeError as error:
        if REFUSED.search(str(error)):
            return
        raise
    reference = Reference(model)
    reference.put(results[0][0])
    try:
        _check_scores(reference, packs[0][0], results[0][1][0])
    except GuaranteeError as error:
        raise GuaranteeError(
            f"a model that divides its logits after the head is scored wrongly, without an error: {error}",
            "the scores of the model's own logits, or a ValueError from init_worker that says the difference",
            doing,
        ) from error


def _packs(model: str, ranks: int) -> list[list[Pack]]:
    """Returns packs as [pack][rank].

    The second repeats the first one's sequences at odd indices, among other neighbours.
    """
    first = [_with_token_fields(make_sequences(model, LENGTHS, seed=10 + rank)) for rank in range(ranks)]
    other = [_with_token_fields(make_sequences(model, LENGTHS, seed=50 + rank)) for rank in range(ranks)]
    second = [
        [a if i % 2 else b for i, (a, b) in enumerate(zip(*pair, strict=True))]
        for pair in zip(first, other, strict=True)
    ]
    return [first, second, [pack[2:3] for pack in first], [[] for _ in first]]


def _with_token_fields(pack: Pack) -> Pack:
    return [
        msgspec.structs.replace(
            s, token_fields={FIELD: np.linspace(0, 1, len(s.token_ids), dtype=np.float32)}
        )
        for s in pack
    ]


def _check_form(pack: Pack, scored: Scored) -> None:
    tokens = sum(len(s.token_ids) for s in pack)
    doing = f"forward a pack of {len(pack)} sequences"
    if [one.entropy is not None for one in (scored.bare, scored.probe, scored.scores)] != [False, True, True]:
        raise GuaranteeError(
            "entropy is not there exactly when asked for", "entropy with entropy=True only", doing
        )
    if scored.wrong_gradients:
        right = "a gradient through every score with grad=True, through none with grad=False"
        raise GuaranteeError(scored.wrong_gradients[0], right, doing)
    if scored.changed:
        right = "a batch that the objective finds as it was packed, its token fields included"
        raise GuaranteeError(f"forward changes {', '.join(scored.changed)} of the batch", right, doing)
    for scores in (scored.bare, scored.probe, scored.scores):
        for name, tensor in _tensors(scores).items():
            if tensor.dtype != torch.float32 or tensor.shape != (tokens,):
                wrong = f"{name} is {tensor.dtype} {list(tensor.shape)}"
                raise GuaranteeError(wrong, f"torch.float32 [{tokens}], a number a token", doing)


def _check_isolation(pack: Pack, scored: list[Scored]) -> None:
    """Checks that the same sequence at the same place has the same scores among other neighbours."""
    lengths = [len(sequence.token_ids) for sequence in pack]
    ones, others = (one.scores.logprobs.split(lengths) for one in scored[:2])
    for i in range(1, len(lengths), 2):
        change = (ones[i] - others[i]).abs()
        if not change.max() <= TOLERANCE:
            raise GuaranteeError(
                f"packed neighbours are seen: token {int(change.argmax())} of sequence {i} changes by "
                f"{change.max():.2g} nats when only its neighbours do",
                f"scores that do not depend on neighbours, to {TOLERANCE:.0e}",
                f"forward two packs of lengths {lengths} whose sequences at odd places are the same",
            )


def _check_scores(reference: Reference, pack: Pack, scored: Scored) -> float:
    with torch.no_grad():
        right = reference.scores(pack)
        plain = reference.scores(pack, temperature=1.0)
    pairs: list[tuple[str, Any, Any, Any]] = [  # no entropy is None: each was asked for
        ("logprob", scored.scores.logprobs, right.logprobs, plain.logprobs),
        ("logprob (grad=False)", scored.bare.logprobs, right.logprobs, plain.logprobs),
        ("entropy", scored.scores.entropy, right.entropy, plain.entropy),
        ("entropy (grad=False)", scored.probe.entropy, right.entropy, plain.entropy),
    ]
    return max(_check_tokens(pack, *pair) for pair in pairs)


def _check_tokens(
    pack: Pack, noun: str, found: torch.Tensor, right: torch.Tensor, plain: torch.Tensor
) -> float:
    error = (found - right).abs()
    if not len(error) or error.max() <= TOLERANCE:
        return float(error.max()) if len(error) else 0.0
    token = int(error.argmax())
    matter = f"{noun} of token {token} is {found[token]:.5f} and should be {right[token]:.5f}"
    if (found - plain).abs().max() <= TOLERANCE:
        matter += ": the record's temperature is not applied"
    elif right[token] == 0:
        matter += ": the first token of a sequence has nothing before it"
    lengths = [len(sequence.token_ids) for sequence in pack]
    temperatures = [sequence.temperature for sequence in pack]
    raise GuaranteeError(
        matter,
        f"a Hugging Face forward of the sequence alone, to {TOLERANCE:.0e} nats",
        f"forward a pack of lengths {lengths} at temperatures {temperatures}",
    )
