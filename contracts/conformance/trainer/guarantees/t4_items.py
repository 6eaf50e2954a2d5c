"""Checks the items of an iteration: each parameter occurs exactly once, complete and unchanged."""

from dataclasses import dataclass

import torch

from contracts.conformance.trainer.reference import Reference
from contracts.conformance.verdicts import GuaranteeError
from contracts.weights import WeightManifest

DOING = (
    "worker.weight_manifest(dtype), list(worker.gather_weights()), forward and backward, gather again, "
    "export, step, export to the same directory, gather again"
)


@dataclass(frozen=True)
class Gathered:
    """One item that `gather_weights` yielded, copied to the CPU."""

    name: str
    tensor: torch.Tensor | None
    contiguous: bool


def check_complete(reference: Reference, iteration: list[Gathered], manifest: WeightManifest) -> None:
    """Checks that one of each set of tied names is yielded, and that the manifest ties the others to it."""
    names = [one.name for one in iteration]
    if twice := [name for name in names if names.count(name) > 1]:
        raise GuaranteeError(f"{twice[0]} is yielded more than once", "every parameter exactly once", DOING)
    groups = list(reference.groups().values())
    tied: dict[str, str] = {}
    for group in groups:
        sent = [name for name in group if name in names]
        if not sent:
            raise GuaranteeError(
                f"{group[0]} is missing: it is not yielded", "every parameter exactly once", DOING
            )
        if len(sent) > 1:
            raise GuaranteeError(
                f"{' and '.join(sent)} are tied and both yielded", "a tied parameter once", DOING
            )
        tied |= {name: sent[0] for name in group if name != sent[0]}
    if manifest.tied != tied:
        raise GuaranteeError(f"the manifest's ties are {manifest.tied}", f"{tied}", DOING)
    if unknown := sorted(set(names) - {name for group in groups for name in group}):
        raise GuaranteeError(
            f"{unknown[0]} is not a parameter of the model", "the model's parameters only", DOING
        )
    shapes = {p.name: p.shape for p in manifest.parameters}
    for one in iteration:
        assert one.tensor is not None  # rank 0 yields tensors: checked by _check_ranks
        if tuple(one.tensor.shape) != shapes[one.name]:
            wrong = f"{one.name} has shape {tuple(one.tensor.shape)} and in the manifest {shapes[one.name]}"
            raise GuaranteeError(wrong, "the manifest's shapes", DOING)


def check_values(reference: Reference, iterations: list[list[Gathered]]) -> None:
    """Checks that the tensors of each iteration are contiguous and equal to the checkpoint's."""
    weights = dict(reference.model.named_parameters(remove_duplicate=False))
    for iteration in iterations:
        for one in iteration:
            if not one.contiguous:
                raise GuaranteeError(f"{one.name} is not contiguous", "full, contiguous tensors", DOING)
            assert one.tensor is not None  # rank 0 yields tensors: checked by _check_ranks
            if one.tensor.shape != weights[one.name].shape:
                wrong = f"{one.name} has shape {list(one.tensor.shape)}"
                raise GuaranteeError(wrong, f"the checkpoint's {list(weights[one.name].shape)}", DOING)
            if not torch.equal(one.tensor.float(), weights[one.name].detach()):
                error = (one.tensor.float() - weights[one.name]).abs().max()
                raise GuaranteeError(f"{one.name} differs from the checkpoint by {error:.2g}", "equal", DOING)
