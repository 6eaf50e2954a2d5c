"""Reads gradients through `step()`, because the contract has no other access to them.

With betas (0, 0), no weight decay and no clipping, AdamW's update is Δ = lr · g / (|g| + ε). So |g| = |Δ| · ε
/ (lr − |Δ|). With ε near the gradient's elements and lr near the weights', Δ is much larger than the rounding
of float32 weights. The rounding leaves an error of about 1e-6 of a tensor's norm, which is computed and
allowed.
"""

import torch

from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.rank_programs import StepsRecord, Tensors
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import Step
from contracts.conformance.verdicts import GuaranteeError
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec

TOLERANCE = 1e-4  # float32 itself has an error of about 3e-5 from a gradient in float64


def readable_optimizer(reference: Reference, sequences: list[TrainingSequence]) -> OptimizerSpec:
    """Returns an optimizer whose updates reveal the gradient of these sequences, or of similar ones."""
    gradients = [_rms(g) for g in reference.gradients(sequences).values()]
    weights = [_rms(w) for w in reference.values().values() if w.dim() > 1]
    eps = float(torch.stack([g for g in gradients if g > 0]).median())
    lr = float(torch.stack([w for w in weights if w > 0]).median())
    return OptimizerSpec(
        lr=lr,
        betas=(0.0, 0.0),
        eps=eps,
        weight_decay=0.0,
        max_grad_norm=1e9,
    )


def _rms(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.square().mean().sqrt()


def gradients(before: Tensors, after: Tensors, spec: OptimizerSpec) -> Tensors:
    """Returns float64 gradients by name, computed from the weights before and after a step."""
    return {name: _gradient(before[name], after[name], spec) for name in before}


def _gradient(before: torch.Tensor, after: torch.Tensor, spec: OptimizerSpec) -> torch.Tensor:
    update = before.double() - after.double()
    remaining = (spec.lr - update.abs()).clamp(min=1e-9 * spec.lr)
    return update * spec.eps / remaining


def rounding_errors(after: Tensors, expected: Tensors, spec: OptimizerSpec) -> dict[str, float]:
    """Returns the norm by which rounding may change the measured gradient of each tensor.

    Updated weights are rounded to float32, and so are a few intermediate results of the size of Δ.
    """
    return {name: _rounding_error(after[name].double(), g.double(), spec) for name, g in expected.items()}


def _rounding_error(weight: torch.Tensor, gradient: torch.Tensor, spec: OptimizerSpec) -> float:
    update = spec.lr * gradient.abs() / (gradient.abs() + spec.eps)
    rounded = (weight.abs() + 3 * update) * 2**-24
    return float((rounded * (gradient.abs() + spec.eps).square() / (spec.lr * spec.eps)).norm())


def check_gradients(
    reference: Reference, results: list[StepsRecord], steps: list[Step], spec: OptimizerSpec
) -> float:
    """Checks every step's gradient, and the norm that every rank reports. Returns the largest error.

    The expected gradient is the reference's sum over all sequences, with the weights before the step.
    """
    worst = 0.0
    for number, step in enumerate(steps):
        before, after = (
            reference.trained(results[0].weights[n], results[0].factors[n]) for n in (number, number + 1)
        )
        reference.put(before)
        expected = reference.gradients(step.sequences, step.scale, step.entropy)
        reproduce = f"{reference.model.config.model_type}, {describe(step)}"
        found = gradients(before, after, spec)
        norm = float(torch.nn.utils.get_total_norm(list(expected.values())))
        # Without a gradient, no weight changes.
        allowed = rounding_errors(after, expected, spec) if norm else None
        right = "the plain sum" + _expected_sum(step)
        worst = max(worst, compare(found, expected, TOLERANCE, "gradient", right, reproduce, allowed))
        for rank, result in enumerate(results):
            check_norm(result.reports[number].grad_norm, norm, rank, reproduce)
    return worst


def check_norm(reported: float, norm: float, rank: int, reproduce: str) -> None:
    """Checks that the reported gradient norm of a rank is `norm`."""
    if not abs(reported - norm) <= TOLERANCE * norm:
        raise GuaranteeError(
            f"rank {rank} reports the gradient norm {reported:.6g} where it is {norm:.6g} before clipping",
            "the norm, over all ranks, of the summed gradient before clipping, to 1e-4",
            reproduce,
        )


def describe(step: Step) -> str:
    """Returns the step's name and the lengths of its sequences, by row and rank."""
    lengths = [[[len(sequence.token_ids) for sequence in share] for share in row] for row in step.rows]
    return f"{step.name}, sequences of lengths {lengths} [row][rank]"


def _expected_sum(step: Step) -> str:
    """Returns a text with the divisors by which a wrong sum is usually off."""
    ranks = len(step.rows[0]) if step.rows else 0
    return f" over {len(step.rows)} row(s) of {ranks} rank(s), divided by nothing"
