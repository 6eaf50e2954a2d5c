"""Compares tensors by norm, one name at a time, and describes a difference by name, size and likely kind."""

import math

import torch

from contracts.conformance.trainer.rank_programs import Tensors
from contracts.conformance.verdicts import GuaranteeError

SMALL = 0.02  # share of the global norm that replaces a smaller norm, in which float32 noise would dominate


def compare(
    actual: Tensors,
    expected: Tensors,
    tolerance: float,
    noun: str,
    right: str,
    reproduce: str,
    rounding_errors: dict[str, float] | None = None,
) -> float:
    """Returns the largest error, relative to the tensor's own norm or to a small share of the global norm.

        noun: what is compared, e.g. "gradient".
        right: what it should be.
        rounding_errors: by name, the norm by which rounding may change a correct tensor; also allowed.

    Raises GuaranteeError beyond `tolerance`.
    """
    actual = {name: actual[name].double() for name in expected}
    expected = {name: tensor.double() for name, tensor in expected.items()}
    least_scale = SMALL * float(torch.nn.utils.get_total_norm(list(expected.values())))
    errors = {}
    for name, tensor in expected.items():
        error = float((actual[name] - tensor).norm())
        scale = max(float(tensor.norm()), least_scale)
        allowed = tolerance * scale + (rounding_errors or {}).get(name, 0.0)
        errors[name] = (not error <= allowed, error / scale if scale else math.inf if error else 0.0)
    worst_name, (broken, worst) = max(errors.items(), key=lambda item: item[1])
    if broken:
        multiple = _multiple(actual, expected)
        raise GuaranteeError(
            f"{noun} of {worst_name} is off by {worst:.1e} of its norm" + multiple,
            f"{right}, to {tolerance:.0e} of each tensor's norm",
            reproduce,
        )
    return worst


def _multiple(actual: Tensors, expected: Tensors) -> str:
    """Returns a note if all tensors are the same multiple of the expected ones, else an empty string."""
    a, e = (torch.cat([t.flatten() for t in tensors.values()]) for tensors in (actual, expected))
    if not e.any() or not a.isfinite().all():
        return ""
    factor = float(a @ e / (e @ e))
    if abs(factor - 1) < 1e-3 or float((a - factor * e).norm()) > 1e-3 * abs(factor) * float(e.norm()):
        return ""
    return f": all tensors are {factor:.4g} times what they should be"
