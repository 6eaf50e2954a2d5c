"""What T9 says of shards in a way that no broken trainer has. The shards of two ranks hold six weights."""

import pytest
import torch

from contracts.conformance.trainer.guarantees.t9_layout import numbers_of
from contracts.conformance.trainer.guarantees.t9_program import BASE, Layout
from contracts.conformance.verdicts import GuaranteeError

GATHERED = {"a": [1, 3, 5, 2], "b": [4, 7]}


class AllWeights:
    """The reference of a trainer of all weights."""

    @staticmethod
    def trained(weights, factors):
        return weights


def layouts(gathered=GATHERED, sizes=((3, 1), (2,)), faults=(), later=None) -> list[Layout]:
    weights = {name: torch.tensor(numbers) for name, numbers in gathered.items()}
    digits = [({n: (w // BASE**d % BASE).float() for n, w in weights.items()}, {}) for d in range(2)]
    asked = [[list(each)] if later is None else [list(each), list(later)] for each in sizes]
    first, *others = (Layout(each, list(faults), []) for each in asked)
    return [Layout(first.sizes, first.faults, digits), *others]


def numbers(**given) -> dict[str, torch.Tensor]:
    return numbers_of(AllWeights, layouts(**given))


def test_numbers_beyond_what_float32_holds_have_two_digits():
    last = BASE * 40
    found = numbers(gathered={"a": [last]}, sizes=((BASE * 20,), (BASE * 20,)))
    assert found["a"].tolist() == [last]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"faults": ["shard 0 is torch.bfloat16"]}, "on rank 0, shard 0 is torch.bfloat16"),
        ({"later": (3, 2)}, "on rank 0, shard 1 has 1 elements, and later 2"),
        ({"later": (3,)}, "on rank 0, there are 2 shards, and later 1"),
        ({"gathered": {"a": [1, 3, 9, 6]}}, "2 of 4 elements of a are in no shard"),
        ({"gathered": {"a": [1, 3], "b": [3]}}, "several elements of a and b take one element's value"),
    ],
)
def test_elements_that_are_not_in_one_shard(given, says):
    with pytest.raises(GuaranteeError, match=says):
        numbers(**given)
