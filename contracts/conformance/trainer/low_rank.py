"""The reference of a worker that trains low-rank factors of some weights: W + scale * B A in plain torch.

W is the weight of the checkpoint. Each gathered weight is compared with that sum. One without factors must
equal the checkpoint, bit for bit. The gradients by A and B follow from the gradient by the weight.
"""

import math

import torch

from contracts.conformance.trainer.rank_programs import Factors, Tensors
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.verdicts import GuaranteeError
from contracts.records import TrainingSequence
from contracts.trainer import LowRank

ROUNDING = 1e-6  # relative to the norm of a merged weight, which may be summed in another order
DOING = "list(worker.gather_weights()) and list(worker.gather_low_rank()) on rank 0"


class LowRankReference(Reference):
    """The model of a directory, with the low-rank factors that a worker gathers and trains."""

    def __init__(self, path: str, factors: Factors):
        super().__init__(path)
        self._frozen = self.weights()
        self._scales = {name: factor.scale for name, factor in factors.items()}
        self._check_factors(factors)
        self._factors = {key: torch.nn.Parameter(tensor.clone()) for key, tensor in _by_key(factors).items()}
        self.put(_by_key(factors))

    @property
    def trains(self) -> str:
        ranks = sorted({len(self._factors[_a(name)]) for name in self._scales})
        return f"factors of rank {' and '.join(map(str, ranks))} of {len(self._scales)} weights"

    # --- what a worker gathered ---------------------------------------------------------------

    def trained(self, weights: Tensors, factors: Factors) -> Tensors:
        """Returns the factors by name.

        Raises GuaranteeError unless every weight is that of the checkpoint, or merged from it with factors.
        """
        self._check_factors(factors)
        for name, weight in self.named(weights).items():
            if name in factors:
                self._check_merged(name, weight, factors[name])
            elif not torch.equal(weight, self._frozen[name]):
                raise GuaranteeError(
                    f"{name} has no factors, and differs from the checkpoint",
                    "weights without factors that are frozen, bit for bit",
                    DOING,
                )
        return _by_key(factors)

    def _check_factors(self, factors: Factors) -> None:
        if not factors:
            raise GuaranteeError("gather_low_rank yields nothing", "what is trained: trains_low_rank", DOING)
        if {name: factor.scale for name, factor in factors.items()} != self._scales:
            raise GuaranteeError(
                "the names or scales of gather_low_rank change", "the same each time, on rank 0", DOING
            )
        for name, factor in factors.items():
            if name not in self._frozen or not math.isfinite(factor.scale):
                raise GuaranteeError(
                    f"gather_low_rank yields {name} with the scale {factor.scale:g}",
                    "names of gather_weights, and finite scales",
                    DOING,
                )
            shapes = [list(tensor.shape) for tensor in (factor.b, factor.a)]
            rank = len(factor.a)
            rows, *columns = self._frozen[name].shape
            if shapes != [[rows, rank], [rank, *columns]]:
                wrong = f"the factors B and A of {name} have the shapes {shapes[0]} and {shapes[1]}"
                raise GuaranteeError(wrong, f"[{rows}, r] and [r, {columns[0]}]", DOING)

    def _check_merged(self, name: str, weight: torch.Tensor, factor: LowRank) -> None:
        delta = factor.scale * (factor.b.double() @ factor.a.double())
        merged = self._frozen[name].double() + delta
        error = float((weight.double() - merged).norm())
        if not error <= ROUNDING * float(self._frozen[name].norm() + delta.norm()):
            left_out = ": B A is not in it" if torch.equal(weight, self._frozen[name]) else ""
            raise GuaranteeError(
                f"{name} is off by {error / float(merged.norm()):.1e} of its norm "
                f"from W + {factor.scale:g} B A{left_out}",
                "the checkpoint's weight plus scale times the product of the factors",
                DOING,
            )

    # --- training -----------------------------------------------------------------------------

    def values(self) -> Tensors:
        return {key: parameter.detach().clone() for key, parameter in self._factors.items()}

    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self._factors.values())

    @torch.no_grad()
    def put(self, trained: Tensors) -> None:
        for key, parameter in self._factors.items():
            parameter.copy_(trained[key])
        merged = dict(self._frozen)
        for name, scale in self._scales.items():
            merged[name] = merged[name] + scale * (self._factors[_b(name)] @ self._factors[_a(name)])
        super().put(merged)

    @torch.no_grad()
    def gradients(
        self, sequences: list[TrainingSequence], scale: float = 1.0, entropy: bool = True
    ) -> Tensors:
        """Returns the gradients by the factors: scale Bᵀ G by A and scale G Aᵀ by B, with G by the weight."""
        with torch.enable_grad():
            by_weight = super().gradients(sequences, scale, entropy)
        for name, factor in self._scales.items():
            a = self._factors[_a(name)]
            b = self._factors[_b(name)]
            a.grad = factor * (b.T @ by_weight[name])
            b.grad = factor * (by_weight[name] @ a.T)
        return {
            key: parameter.grad.clone()
            for key, parameter in self._factors.items()
            if parameter.grad is not None
        }


def _a(name: str) -> str:
    return f"factor A of {name}"


def _b(name: str) -> str:
    return f"factor B of {name}"


def _by_key(factors: Factors) -> Tensors:
    return {
        key: tensor
        for name, factor in factors.items()
        for key, tensor in ((_a(name), factor.a), (_b(name), factor.b))
    }
