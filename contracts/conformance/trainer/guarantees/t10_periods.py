"""T10: only the last step of a period changes weights in another way than AdamW, and a checkpoint knows when.

The contract does not define how it changes them. So the weights gathered after it are taken as correct.
"""

import math

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.guarantees.t1_scores import TOLERANCE as SCORES_TOLERANCE
from contracts.conformance.trainer.guarantees.t5_resume import TOLERANCE as RESUMED_TOLERANCE
from contracts.conformance.trainer.guarantees.t10_program import (
    PERIODS,
    Completed,
    complete_periods,
    ends_period,
    load_in_period,
    period_of,
    saved_after,
    steps_of,
)
from contracts.conformance.trainer.reference import Reference, learning_rate
from contracts.conformance.trainer.replay import Replay
from contracts.conformance.trainer.sequences import LENGTHS, Step
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError
from contracts.trainer import OptimizerSpec, StepReport

SPEC = OptimizerSpec(lr=1e-2, eps=1e-4, weight_decay=0.1, max_grad_norm=0.02, warmup_steps=2, decay_steps=400)


def periods(bench: Bench) -> str:
    """Makes two periods of steps and one more. Checks AdamW's steps, scores at the ends, and a checkpoint."""
    model = bench.models[0]
    period = _offered(bench.session(period_of, model, SPEC, doing="worker.period"))
    directory = bench.directory / "checkpoints" / "step"
    directory.parent.mkdir()
    steps = steps_of(model, bench.ranks, period)
    doing = f"{len(steps)} steps of lengths {LENGTHS} with {SPEC!r}, saved after {saved_after(period)}"
    results = bench.session(complete_periods, model, SPEC, period, directory, doing=doing)
    reference = bench.reference(model)
    for number in range(len(steps)):
        _check_reports([result.steps.reports[number] for result in results], number, doing)
    worst_score = _check_scores(reference, steps, results, period, doing)
    worst_update = _check_updates(reference, steps, results[0], period, doing)
    doing = f"{doing}, and loaded"
    resumed = bench.session(load_in_period, model, SPEC, period, directory, doing=doing)
    _check_resumed(results[0], resumed[0], period, doing)
    inside = (
        f"updates inside it within {worst_update:.0e} of AdamW's" if period > 1 else "no update inside it"
    )
    return (
        f"a period of {period}: {inside}; at its end scores within {worst_score:.0e} nats; a checkpoint "
        "goes on as the uninterrupted run"
    )


PARTS = {"periods": periods}


def _offered(found: list[object]) -> int:
    """Returns the period of all ranks. Raises NotDeclaredError if there is none."""
    if any(period != found[0] for period in found):
        raise GuaranteeError(f"the ranks have the periods {found}", "the same on every rank", "worker.period")
    period = found[0]
    if period is None:
        raise NotDeclaredError("not offered: period is None")
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        raise GuaranteeError(f"the period is {period!r}", "a number of steps, or None", "worker.period")
    return period


def _check_reports(reports: list[StepReport], number: int, doing: str) -> None:
    """Checks the learning rate of a step, and that further numbers are numbers."""
    rate = learning_rate(SPEC, number)
    for rank, report in enumerate(reports):
        if not math.isclose(report.learning_rate, rate, rel_tol=1e-6, abs_tol=1e-6 * SPEC.lr):
            wrong = f"in step {number + 1}, rank {rank} reports the learning rate {report.learning_rate:.6g}"
            raise GuaranteeError(wrong, f"{rate:.6g}, as without a period", doing)
    for name, value in reports[0].measures.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            wrong = f"step {number + 1} has the measure {name}={value!r}"
            raise GuaranteeError(wrong, "a finite int or float", doing)


def _check_updates(
    reference: Reference, steps: list[Step], result: Completed, period: int, doing: str
) -> float:
    """Checks each step that ends no period. Returns the largest error, relative to an update's norm."""
    replay = Replay(reference, SPEC)
    weights = [
        reference.trained(each, factors)
        for each, factors in zip(result.steps.weights, result.steps.factors, strict=True)
    ]
    worst = 0.0
    for number, step in enumerate(steps):
        before = weights[number]
        after = weights[number + 1]
        rate = result.steps.reports[number].learning_rate
        ends = ends_period(number, period)
        if not math.isfinite(step.scale):
            if not ends:
                _check_unchanged(before, after, number, doing)
            continue
        replay.gradient(step, before)
        if ends:
            replay.step(rate)
            continue
        noun = f"update of step {number + 1}, which ends no period of {period},"
        worst = max(worst, replay.update(before, after, rate, doing, noun))
    return worst


def _check_unchanged(
    before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], number: int, doing: str
) -> None:
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    if changed:
        wrong = f"{changed[0]} changed in step {number + 1}, which was skipped and ends no period"
        raise GuaranteeError(wrong, "weights unchanged", doing)


def _check_scores(
    reference: Reference, steps: list[Step], results: list[Completed], period: int, doing: str
) -> float:
    """Checks the scores after each period. Returns the largest error in nats."""
    worst = 0.0
    for ended in range(PERIODS):
        number = (ended + 1) * period - 1
        record = results[0].steps
        reference.put(reference.trained(record.weights[number + 1], record.factors[number + 1]))
        for rank, result in enumerate(results):
            with torch.no_grad():
                right = reference.scores(steps[number].rows[0][rank]).logprobs
            error = float((result.scores[ended] - right).abs().max()) if len(right) else 0.0
            worst = max(worst, error)
            if not error <= SCORES_TOLERANCE:
                raise GuaranteeError(
                    f"after step {number + 1}, which ends a period, a log-probability on rank {rank} is off "
                    f"by {error:.2g} nats",
                    f"a Hugging Face forward with the weights that are gathered, to {SCORES_TOLERANCE:.0e}",
                    doing,
                )
    return worst


def _check_resumed(whole: Completed, resumed: Completed, period: int, doing: str) -> None:
    saved = saved_after(period)
    pairs = zip(whole.steps.weights[saved:], resumed.steps.weights, strict=True)
    for number, (expected, found) in enumerate(pairs):
        when = "loaded" if number == 0 else f"after step {saved + number}, from the checkpoint"
        right = "the uninterrupted run's weights"
        compare(found, expected, RESUMED_TOLERANCE, f"weight ({when})", right, doing)
