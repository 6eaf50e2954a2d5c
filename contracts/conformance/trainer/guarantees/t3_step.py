"""T3: a step is torch's AdamW: clipping, weight decay, schedule, skipped updates, reset moments."""

import math
from typing import Any

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.gradient_readout import check_norm
from contracts.conformance.trainer.rank_programs import StepsRecord, Tensors, run_steps
from contracts.conformance.trainer.reference import Reference, learning_rate
from contracts.conformance.trainer.sequences import LENGTHS, Step, make_sequences, round_robin
from contracts.conformance.verdicts import GuaranteeError
from contracts.trainer import OptimizerSpec, StepReport

TOLERANCE = 1e-4  # relative to the norm of an update, which is some 1e-2 of that of the weights
SPEC = OptimizerSpec(
    lr=1e-2,
    eps=1e-4,  # about the size of clipped gradients: wrong clipping shows, but float noise does not
    weight_decay=0.1,
    max_grad_norm=0.02,
    warmup_steps=2,
    decay_steps=8,
)


def check(bench: Bench) -> str:
    """Makes a few special steps, and compares each update with torch's."""
    worst = 0.0
    for model in bench.models:
        steps = _steps(model, bench.ranks)
        doing = f"{len(steps)} steps of lengths {LENGTHS} with {SPEC!r}"
        results = bench.session(run_steps, model, SPEC, steps, doing=doing)
        worst = max(worst, _replay(Reference(model), results, steps))
    return (
        f"{len(steps)} updates equal torch AdamW's, within {worst:.0e} of each tensor's; norm before clipping"
    )


def _steps(model: str, ranks: int) -> list[Step]:
    def rows(seed: int) -> list[Any]:
        return round_robin(
            make_sequences(model, LENGTHS, seed), ranks, per_share=len(LENGTHS) // (2 * ranks) or 1
        )

    return [
        Step("step 0, warm-up", rows(0)),
        Step("step 1, warm-up", rows(1)),
        Step("step 2, a gradient that is not finite", rows(2), scale=math.inf),
        Step("step 3, decay", rows(3)),
        Step("step 4, a gradient too small to be clipped", rows(4), scale=1e-5),
        Step("step 5, after reset_optimizer()", rows(5), reset=True),
    ]


def _replay(reference: Reference, results: list[StepsRecord], steps: list[Step]) -> float:
    optimizer = reference.adamw(SPEC)
    worst = 0.0
    for number, step in enumerate(steps):
        doing = f"{reference.model.config.model_type}, {step.name}, of lengths {LENGTHS} with {SPEC!r}"
        before, after = (reference.named(w) for w in results[0].weights[number : number + 2])
        reports = [result.reports[number] for result in results]
        if step.reset:
            optimizer = reference.adamw(SPEC)
        if not math.isfinite(step.scale):
            _check_skipped(reports, before, after, doing)
            continue
        reference.put(before)
        reference.gradients(step.sequences, step.scale)
        norm = torch.nn.utils.clip_grad_norm_(reference.model.parameters(), SPEC.max_grad_norm).item()
        _check_reports(reports, norm, None if step.reset else learning_rate(SPEC, number), doing)
        optimizer.param_groups[0]["lr"] = reports[0].learning_rate
        optimizer.step()
        expected = _difference(before, reference.weights())
        found = _difference(before, after)
        worst = max(worst, compare(found, expected, TOLERANCE, "update", "torch AdamW's update", doing))
    return worst


def _difference(before: Tensors, after: Tensors) -> Tensors:
    return {name: after[name].double() - before[name].double() for name in before}


def _check_reports(reports: list[StepReport], norm: float, rate: float | None, doing: str) -> None:
    """Checks the norm and learning rate that every rank reports.

    `rate` is None after `reset_optimizer`, because the contract does not define its effect on the schedule.
    """
    for rank, report in enumerate(reports):
        check_norm(report.grad_norm, norm, rank, doing)
        if rate is not None and not math.isclose(report.learning_rate, rate, rel_tol=1e-6):
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
                "on every rank skipped=True and a norm that is not finite: one loss was infinite",
                doing,
            )
    if changed := [name for name in before if not torch.equal(before[name], after[name])]:
        raise GuaranteeError(f"{changed[0]} changed in a step that was skipped", "weights unchanged", doing)
