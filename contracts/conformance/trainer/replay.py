"""Repeats a worker's steps with torch's AdamW, on the values that the worker has gathered."""

import torch

from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.rank_programs import Tensors
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import Step
from contracts.trainer import OptimizerSpec

TOLERANCE = 1e-4  # relative to the norm of an update, which is about 1e-2 of the weights' norm
ROUNDING = 2 * 2**-24  # relative to a weight: an update in float64 is rounded to float32 once, torch's twice


class Replay:
    """An optimizer of the parameters that the reference trains.

    For each step, call `gradient`, and then `update` or `step`.
    """

    def __init__(self, reference: Reference, spec: OptimizerSpec):
        self._reference = reference
        self._spec = spec
        self.reset()

    def reset(self) -> None:
        """Discards the moments."""
        self._optimizer = self._reference.adamw(self._spec)

    def gradient(self, step: Step, before: Tensors) -> float:
        """Computes the step's clipped gradient at `before`. Returns its norm before clipping."""
        self._reference.put(before)
        self._reference.gradients(step.sequences, step.scale, step.entropy)
        norm = torch.nn.utils.clip_grad_norm_(self._reference.parameters(), self._spec.max_grad_norm)
        return norm.item()

    def step(self, rate: float) -> None:
        """Updates at the learning rate `rate`, without a comparison."""
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()

    def update(self, before: Tensors, after: Tensors, rate: float, doing: str, noun: str = "update") -> float:
        """Updates at the learning rate `rate`, and compares with the worker's update.

        Returns the largest error, relative to the norm of each tensor's update. Raises GuaranteeError beyond
        TOLERANCE; `doing` describes how to reproduce it, and `noun` names the update.
        """
        self.step(rate)
        expected = _difference(before, self._reference.values())
        found = _difference(before, after)
        rounding = {name: ROUNDING * float(weight.norm()) for name, weight in after.items()}
        return compare(found, expected, TOLERANCE, noun, "torch AdamW's update", doing, rounding)


def _difference(before: Tensors, after: Tensors) -> Tensors:
    return {name: after[name].double() - before[name].double() for name in before}
