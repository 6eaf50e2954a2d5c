"""T3: a step equals torch's AdamW: clipping, weight decay, schedule, skipped updates, reset moments."""

import math

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.gradient_readout import check_norm
from contracts.conformance.trainer.rank_programs import StepsRecord, Tensors, run_steps
from contracts.conformance.trainer.reference import Reference, learning_rate
from contracts.conformance.trainer.replay import Replay
from contracts.conformance.trainer.sequences import LENGTHS, Rows, Step, make_sequences, round_robin
from contracts.conformance.verdicts import GuaranteeError
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, StepReport

SPEC = OptimizerSpec(
    lr=1e-2,
    eps=1e-4,  # about the size of clipped gradients: wrong clipping shows, but float noise does not
    weight_decay=0.1,
    max_grad_norm=0.02,
    warmup_steps=2,
    decay_steps=7,
)


def updates(bench: Bench) -> str:
    """Makes a few special steps, and compares each update with torch's."""
    worst = 0.0
    for model in bench.models:
        reference = bench.reference(model)
        steps = _steps(reference, bench.ranks)
        doing = f"{len(steps)} steps of lengths {LENGTHS} with {SPEC!r}"
        results = bench.session(run_steps, model, SPEC, steps, doing=doing)
        worst = max(worst, _replay(reference, results, steps))
    return (
        f"{len(steps)} updates of {reference.trains} equal torch AdamW's, within {worst:.0e} of each "
        "tensor's; norm before clipping"
    )


PARTS = {"updates": updates}


def _steps(reference: Reference, ranks: int) -> list[Step]:
    model = reference.path
    overflow = _overflow(reference, make_sequences(model, LENGTHS, 2))

    def rows(seed: int) -> Rows:
        return round_robin(
            make_sequences(model, LENGTHS, seed), ranks, per_share=len(LENGTHS) // (2 * ranks) or 1
        )

    idle: Rows = [[[] for _ in range(ranks)]]
    return [
        Step("step 0, warm-up", rows(0)),
        Step("step 1, warm-up", rows(1)),
        Step("step 2, a gradient that overflows float32", rows(2), scale=overflow),
        Step("step 3, decay", rows(3)),
        Step("step 4, empty micro-batches on every rank, and moments", idle),
        Step("step 5, a gradient too small to be clipped", rows(5), scale=1e-5),
        Step("step 6, a loss on rank 0 that is not a number", rows(6), scale=math.nan, spoilt=0),
        Step("step 7, after reset_optimizer()", rows(7), reset=True),
        Step("step 8, an infinite loss on the last rank", rows(8), scale=math.inf),
        Step("step 9, with moments of step 7", rows(9)),
        Step("step 10, after the decay", rows(10)),
    ]


def _overflow(reference: Reference, sequences: list[TrainingSequence]) -> float:
    """Returns a finite scale of the loss at which the gradient has elements that are not finite."""
    largest = max(float(g.abs().max()) for g in reference.gradients(sequences).values())
    return 4 * torch.finfo(torch.float32).max / largest


def _replay(reference: Reference, results: list[StepsRecord], steps: list[Step]) -> float:
    replay = Replay(reference, SPEC)
    rates = [learning_rate(SPEC, number) for number in range(len(steps))]
    worst = 0.0
    for number, step in enumerate(steps):
        doing = f"{reference.model.config.model_type}, {step.name}, of lengths {LENGTHS} with {SPEC!r}"
        before, after = (
            reference.trained(results[0].weights[n], results[0].factors[n]) for n in (number, number + 1)
        )
        reports = [result.reports[number] for result in results]
        if step.reset:
            replay.reset()
            rates = _rates_after_reset(rates, number, reports[0].learning_rate)
        if not 1e-9 < step.scale < 1e9:
            _check_skipped(reports, before, after, doing)
            continue
        norm = replay.gradient(step, before)
        _check_reports(reports, norm, rates[number], doing)
        worst = max(worst, replay.update(before, after, reports[0].learning_rate, doing))
    return worst


def _rates_after_reset(rates: list[float], number: int, reported: float) -> list[float]:
    """Returns the learning rates by step, restarted at step `number` if the worker restarts them there.

    The contract does not define whether it does. The reported rate shows it.
    """
    restarted = rates[:number] + [learning_rate(SPEC, step) for step in range(len(rates) - number)]
    return restarted if math.isclose(reported, restarted[number], rel_tol=1e-6) else rates


def _check_reports(reports: list[StepReport], norm: float, rate: float, doing: str) -> None:
    """Checks the norm and learning rate that every rank reports."""
    for rank, report in enumerate(reports):
        check_norm(report.grad_norm, norm, rank, doing)
        if not math.isclose(report.learning_rate, rate, rel_tol=1e-6, abs_tol=1e-6 * SPEC.lr):
            raise GuaranteeError(
                f"rank {rank} reports the learning rate {report.learning_rate:.6g}",
                f"{rate:.6g}: skipped steps count, the first warm-up step is at lr / warmup_steps",
                doing,
            )
        if report.skipped:
            raise GuaranteeError(
                f"rank {rank} says that a step with a finite gradient was skipped", "an update", doing
            )


def _check_skipped(reports: list[StepReport], before: Tensors, after: Tensors, doing: str) -> None:
    for rank, report in enumerate(reports):
        if not report.skipped or math.isfinite(report.grad_norm):
            raise GuaranteeError(
                f"rank {rank} reports skipped={report.skipped}, norm {report.grad_norm:.3g}",
                "on every rank skipped=True and a norm that is not finite: a gradient was not finite",
                doing,
            )
    if changed := [name for name in before if not torch.equal(before[name], after[name])]:
        raise GuaranteeError(f"{changed[0]} changed in a step that was skipped", "weights unchanged", doing)
