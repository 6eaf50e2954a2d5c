"""What T9 says of shards that hold the wrong elements. The shards of two ranks hold six weights."""

import pytest
import torch

from contracts.conformance.trainer.guarantees.t9_layout import check_rest, check_same, numbers_of
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


def test_each_element_has_its_number():
    found = numbers()
    assert {name: tensor.tolist() for name, tensor in found.items()} == GATHERED
    check_rest(found, [torch.ones(4), torch.ones(2)])
    check_same(found, found, layouts(), layouts())


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
        ({"gathered": {"a": [1, 3, 5, 0]}}, "1 of 4 elements of a are in no shard, or a write to it is lost"),
        ({"gathered": {"a": [1, 3, 9, 6]}}, "2 of 4 elements of a are in no shard"),
        ({"gathered": {"a": [1, 3], "b": [3]}}, "several elements of a and b take one element's value"),
    ],
)
def test_elements_that_are_not_in_one_shard(given, says):
    with pytest.raises(GuaranteeError, match=says):
        numbers(**given)


def test_what_is_not_gathered_is_padding():
    found = numbers(gathered={"a": [1, 3, 5, 2]})
    check_rest(found, [torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0])])
    with pytest.raises(
        GuaranteeError, match=r"rank 1 has elements in its shards \(1\) that are in no gathered weight"
    ):
        check_rest(found, [torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.ones(2)])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gathered": {"a": [3, 1, 5, 2], "b": [4, 7]}}, "the elements of a have another place"),
        ({"sizes": ((4,), (2,))}, "in new processes, on rank 0, there are 2 shards, and later 1"),
        ({"sizes": ((3, 1), (3,))}, "in new processes, on rank 1, shard 0 has 2 elements, and later 3"),
    ],
)
def test_shards_that_lie_otherwise_in_another_process(given, says):
    with pytest.raises(GuaranteeError, match=says):
        check_same(numbers(), numbers(**given), layouts(), layouts(**given))
