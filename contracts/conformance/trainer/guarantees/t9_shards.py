"""T9: shards hold all trained values; after `adopt`, values written to them are scored and trained.

Batches are simple, because other guarantees vary them: one sequence per rank, at temperature 1.
"""

import math

import torch
from msgspec.structs import replace

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.guarantees.t1_scores import TOLERANCE
from contracts.conformance.trainer.guarantees.t9_layout import check_rest, check_same, numbers_of
from contracts.conformance.trainer.guarantees.t9_program import Exchanged, exchange, number_shards
from contracts.conformance.trainer.rank_programs import StepsRecord
from contracts.conformance.trainer.reference import Reference, learning_rate
from contracts.conformance.trainer.replay import Replay
from contracts.conformance.trainer.sequences import Step, make_sequences, split_evenly
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec

LENGTH = 24  # tokens of every sequence
STEPS = 3  # the last one after adopt()
SPEC = OptimizerSpec(lr=1e-2, eps=1e-4, weight_decay=0.0, max_grad_norm=0.02, decay_steps=8)
DOING = (
    f"{STEPS - 1} steps, then write to shards() and adopt(): numbers, the former elements, and these with "
    f"noise; forward, 1 step; sequences of {LENGTH} tokens, one a rank, with {SPEC!r}"
)


def shards(bench: Bench) -> str:
    """Writes to the shards of every model. Checks gathered weights, scores and the next update."""
    counts = []
    worst_score = 0.0
    worst_update = 0.0
    for number, model in enumerate(bench.models):
        steps = [Step(f"step {seed}", _row(bench, model, seed), entropy=False) for seed in range(STEPS)]
        probe = _row(bench, model, seed=STEPS)[0]
        results = _offered(bench.session(exchange, model, SPEC, steps, probe, doing=DOING))
        reference = bench.reference(model)
        layouts = [result.layout for result in results]
        numbers = numbers_of(reference, layouts)
        if results[0].moved.values is None:  # a value head is in no weight that is gathered
            check_rest(numbers, [result.own for result in results])
        if number == 0:
            doing = "write numbers to shards(), adopt(), list(gather_weights()), with the seed 1"
            others = bench.session(number_shards, model, SPEC, doing=doing, seed=1)
            check_same(numbers, numbers_of(reference, others), layouts, others)
        _check_restored(results[0])
        worst_score = max(worst_score, _check_scores(reference, probe, results))
        worst_update = max(worst_update, _check_updates(reference, steps, results))
        counts.append(sum(found.numel() for found in numbers.values()))
    alone = "; only one rank was tried, so that none had to share" if bench.ranks == 1 else ""
    return (
        f"{' and '.join(map(str, counts))} elements, each in the shards of one rank; after adopt() scores "
        f"within {worst_score:.0e} nats, the next update within {worst_update:.0e}{alone}"
    )


PARTS = {"shards": shards}


def _row(bench: Bench, model: str, seed: int) -> list[list[list[TrainingSequence]]]:
    sequences = make_sequences(model, [LENGTH] * bench.ranks, seed)
    return split_evenly([replace(sequence, temperature=1.0) for sequence in sequences], bench.ranks)


def _offered(results: list[Exchanged | None]) -> list[Exchanged]:
    """Returns the results. Raises NotDeclaredError if there are no shards on any rank."""
    offered = [result for result in results if result is not None]
    if not offered:
        raise NotDeclaredError("not offered: shards() returns None")
    if len(offered) < len(results):
        raise GuaranteeError(
            f"shards() returns None on rank {results.index(None)}, and not on every rank",
            "None on every rank or on none",
            "worker.shards()",
        )
    return offered


def _check_restored(result: Exchanged) -> None:
    weights, factors = result.restored
    before = result.trained.weights[-1]
    changed = [name for name in before if not torch.equal(weights[name], before[name])]
    former = result.trained.factors[-1]
    changed += [
        name
        for name, factor in former.items()
        if not (torch.equal(factor.a, factors[name].a) and torch.equal(factor.b, factors[name].b))
    ]
    if changed:
        wrong = f"{changed[0]} differs after its former elements were written to the shards again"
        raise GuaranteeError(wrong, "weights as before, bit for bit", DOING)


def _check_scores(
    reference: Reference, probe: list[list[TrainingSequence]], results: list[Exchanged]
) -> float:
    """Checks the scores after `adopt`, and returns the largest error in nats."""
    reference.put(_trained(reference, results[0].following, 0))
    worst = 0.0
    for rank, (pack, result) in enumerate(zip(probe, results, strict=True)):
        with torch.no_grad():
            errors = (result.moved.logprobs - reference.scores(pack).logprobs).abs()
        worst = max(worst, float(errors.max()))
        if not errors.max() <= TOLERANCE:
            raise GuaranteeError(
                f"after adopt(), the log-probability of token {int(errors.argmax())} on rank {rank} is off "
                f"by {errors.max():.2g} nats",
                f"a Hugging Face forward with the weights that are gathered, to {TOLERANCE:.0e} nats",
                DOING,
            )
        _check_values(rank, result)
    return worst


def _check_values(rank: int, result: Exchanged) -> None:
    """Checks that the shards include a value head, which is in no gathered weight."""
    before = result.before.values
    moved = result.moved.values
    if before is not None and moved is not None and torch.equal(before, moved):
        raise GuaranteeError(
            f"the values on rank {rank} are as before, although every element of every shard has changed",
            "a value head in the shards, as all that is trained",
            DOING,
        )


def _check_updates(reference: Reference, steps: list[Step], results: list[Exchanged]) -> float:
    """Checks that the step after `adopt` is AdamW with the moments of those before. Returns the error."""
    replay = Replay(reference, SPEC)
    *former, last = steps
    for number, step in enumerate(former):
        _follow(replay, reference, step, results[0].trained, number, "update")
    for rank, result in enumerate(results):
        rate = result.following.reports[0].learning_rate
        right = learning_rate(SPEC, len(former))
        if not math.isclose(rate, right, rel_tol=1e-6):
            wrong = f"after adopt(), rank {rank} reports the learning rate {rate:.6g}"
            raise GuaranteeError(wrong, f"{right:.6g}, as without it", DOING)
    return _follow(replay, reference, last, results[0].following, 0, "update after adopt()")


def _follow(
    replay: Replay, reference: Reference, step: Step, record: StepsRecord, number: int, noun: str
) -> float:
    before = _trained(reference, record, number)
    after = _trained(reference, record, number + 1)
    replay.gradient(step, before)
    return replay.update(before, after, record.reports[number].learning_rate, DOING, noun)


def _trained(reference: Reference, record: StepsRecord, number: int) -> dict[str, torch.Tensor]:
    return reference.trained(record.weights[number], record.factors[number])
