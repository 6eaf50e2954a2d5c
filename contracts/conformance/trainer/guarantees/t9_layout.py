"""Checks the layout of shards: each trained element occurs once, always at the same position."""

import torch

from contracts.conformance.trainer.guarantees.t9_program import BASE, Layout
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.verdicts import GuaranteeError

Numbers = dict[str, torch.Tensor]  # by tensor, the number of each element; 0 if it has none
DOING = "write its own number to each element of shards() on every rank, adopt(), list(gather_weights())"
ONCE = "each trained element in the shards of one rank, and its value in the weights after adopt()"


def numbers_of(reference: Reference, layouts: list[Layout]) -> Numbers:
    """Returns the number that each trained element had. Raises GuaranteeError if it is not in one shard."""
    for rank, layout in enumerate(layouts):
        if layout.faults:
            raise GuaranteeError(
                f"on rank {rank}, {layout.faults[0]}",
                "contiguous float32 tensors without a gradient",
                "worker.shards()",
            )
        for sizes in layout.sizes:
            if sizes != layout.sizes[0]:
                raise GuaranteeError(
                    f"on rank {rank}, {_difference(layout.sizes[0], sizes)}",
                    "the same number of shards and of their elements, as long as the worker lives",
                    "shards(), two steps, shards(), adopt(), one step, shards()",
                )
    numbers = _decoded(reference, layouts[0])
    _check_known(numbers, _totals(layouts))
    _check_distinct(numbers)
    return numbers


def check_rest(numbers: Numbers, own: list[torch.Tensor]) -> None:
    """Checks that shard elements of no gathered weight are padding. own: by rank."""
    found = torch.cat([each.flatten() for each in numbers.values()]) - 1
    for rank, elements in enumerate(own):
        gathered = torch.zeros(len(elements), dtype=torch.bool)
        gathered[found[found % len(own) == rank] // len(own)] = True
        if count := int(elements[~gathered].count_nonzero()):
            raise GuaranteeError(
                f"rank {rank} has elements in its shards ({count}) that are in no gathered weight and not 0",
                f"{ONCE}; zeros, where a shard is padded",
                DOING,
            )


def check_same(numbers: Numbers, other: Numbers, layouts: list[Layout], others: list[Layout]) -> None:
    """Checks that two trainers, which differ only in their seeds, divide elements in the same way."""
    right = "order and sizes that follow from model, options and ranks: those of every trainer with the same"
    doing = f"{DOING}; again in new processes with another seed"
    for rank, (one, another) in enumerate(zip(layouts, others, strict=True)):
        if one.sizes[0] != another.sizes[0]:
            difference = _difference(one.sizes[0], another.sizes[0])
            raise GuaranteeError(f"in new processes, on rank {rank}, {difference}", right, doing)
    for name, found in numbers.items():
        if not torch.equal(found, other[name]):
            raise GuaranteeError(
                f"the elements of {name} have another place in the shards of new processes", right, doing
            )


def _difference(sizes: list[int], later: list[int]) -> str:
    if len(sizes) != len(later):
        return f"there are {len(sizes)} shards, and later {len(later)}"
    place = next(i for i, pair in enumerate(zip(sizes, later, strict=True)) if pair[0] != pair[1])
    return f"shard {place} has {sizes[place]} elements, and later {later[place]}"


def _decoded(reference: Reference, layout: Layout) -> Numbers:
    digits = [reference.trained(weights, factors) for weights, factors in layout.digits]
    numbers = {}
    for name in digits[0]:
        value = torch.zeros(digits[0][name].shape, dtype=torch.float64)
        for place, digit in enumerate(digits):
            value += digit[name].double() * BASE**place
        numbers[name] = torch.where(value == value.round(), value, 0).long()
    return numbers


def _totals(layouts: list[Layout]) -> torch.Tensor:
    return torch.tensor([sum(layout.sizes[0]) for layout in layouts])


def _check_known(numbers: Numbers, totals: torch.Tensor) -> None:
    """Checks that each number is one that was written; `totals` are the ranks' numbers of elements."""
    for name, found in numbers.items():
        rank = (found - 1) % len(totals)
        known = (found > 0) & ((found - 1) // len(totals) < totals[rank])
        if count := int((~known).sum()):
            wrong = f"{count} of {found.numel()} elements of {name} are in no shard, or a write to it is lost"
            raise GuaranteeError(wrong, ONCE, DOING)


def _check_distinct(numbers: Numbers) -> None:
    every, counts = torch.cat([found.flatten() for found in numbers.values()]).unique(return_counts=True)
    if not (counts > 1).any():
        return
    twice = every[counts > 1][0]
    names = [name for name, found in numbers.items() if (found == twice).any()]
    raise GuaranteeError(f"several elements of {' and '.join(names)} take one element's value", ONCE, DOING)
