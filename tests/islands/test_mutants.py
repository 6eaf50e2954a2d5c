"""Broken islands: a line of the mathematics or of the books is changed, and the test of it must fail."""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.islands import test_checkpoints, test_missed_rounds, test_quantise, test_ring, test_rounds
from tests.islands.test_rounds import EVERY, NESTEROV
from trainer_adapters.diloco import DiLoCoTrainer
from trainer_adapters.islands.drift import Drift
from trainer_adapters.islands.island import Island
from trainer_adapters.islands.outer import Outer
from trainer_adapters.islands.quantise import Blocks
from trainer_adapters.islands.ring import Ring

OWNERS = (DiLoCoTrainer, Drift, Island, Outer, Ring, Blocks)


class Mutant(NamedTuple):
    """A method in whose source `old` becomes `new`, and the test that must fail then."""

    method: Callable
    old: str
    new: str
    test: Callable[[Path], object]


def oracle(islands: int, quantise: str, outer: dict) -> Callable[[Path], object]:
    return lambda _: test_rounds.test_rounds_make_the_weights_of_the_oracle(islands, quantise, outer)


MUTANTS = {
    "adds the drift instead of taking it off": Mutant(
        Drift.weighted,
        "self._outer.anchor[begin:end] - shards.read(begin, end)",
        "shards.read(begin, end) - self._outer.anchor[begin:end]",
        oracle(2, "none", {}),
    ),
    "divides by the number of islands": Mutant(
        Island._sum,
        "weight=sum(updates.values()) / self._options.period",
        "weight=float(len(members))",
        lambda _: test_rounds.test_each_drift_weighs_as_its_updates_and_skipped_ones_do_not_count(),
    ),
    "does not tell the inner trainer of the new weights": Mutant(
        Island._make, "self._inner.adopt()", "pass", oracle(2, "none", {})
    ),
    "forgets the momentum in checkpoints": Mutant(
        Island.state,
        '"momentum": self.outer.momentum',
        '"momentum": None',
        lambda path: test_checkpoints.test_a_loaded_island_continues_bit_for_bit(path, EVERY + 3, True),
    ),
    "counts skipped updates": Mutant(
        DiLoCoTrainer.step,
        "+= not report.skipped",
        "+= 1",
        lambda _: test_rounds.test_each_drift_weighs_as_its_updates_and_skipped_ones_do_not_count(),
    ),
    "makes the round an update late": Mutant(
        DiLoCoTrainer.step,
        "self._since < self._options.period",
        "self._since <= self._options.period",
        oracle(2, "none", {}),
    ),
    "goes back to the anchor when a round fails": Mutant(
        Island._attempt,
        "if not silent and self.drift.updates:",
        "self.drift._shards().write(0, self.outer.anchor)\n        if not silent and self.drift.updates:",
        lambda _: test_missed_rounds.test_a_round_that_is_not_committed_changes_no_bit({}),
    ),
    "drops the drift when it catches up": Mutant(
        Island._move,
        "behind <= self._options.max_behind",
        "behind < 0",
        lambda _: test_missed_rounds.test_who_missed_rounds_replays_them_and_merges_its_whole_drift({}),
    ),
    "counts a drift twice after a round that only others made": Mutant(
        Island._attempt,
        "self.drift.remember()",
        "pass",
        lambda _: test_missed_rounds.test_what_the_others_have_merged_does_not_count_twice(),
    ),
    "leaves out Nesterov's look ahead": Mutant(
        Outer._move, "mean.add_(momentum * self.beta)", "pass", oracle(2, "none", NESTEROV)
    ),
    "takes momentum in place of the look ahead": Mutant(
        Outer._move, "mean.add_(momentum * self.beta)", "mean.copy_(momentum)", oracle(2, "none", NESTEROV)
    ),
    "leaves out the outer learning rate": Mutant(
        Outer._move, "mean.mul_(self.lr)", "mean", oracle(2, "none", NESTEROV)
    ),
    "does not add what it receives": Mutant(
        Ring.sum,
        "values += quantiser.decode(arrived[index].wait(), end - begin)",
        "arrived[index].wait()",
        lambda _: test_ring.test_every_member_has_the_bytes_of_the_oracle(3, 700),
    ),
    "returns parts in the order in which they come": Mutant(
        Ring._all_messages,
        "for part in range(self._size) for transfer",
        "for part in parts for transfer",
        lambda _: test_ring.test_every_member_has_the_bytes_of_the_oracle(3, 2305),
    ),
    "rounds down in place of to the nearest": Mutant(
        Blocks.encode,
        ".round_()",
        ".trunc_()",
        lambda _: test_quantise.test_drawn_vectors_have_the_bytes_of_the_oracle(1000),
    ),
    "makes a block of zeros not finite": Mutant(
        Blocks.decode,
        "* scales.clone().view(torch.float32)[:, None]",
        "/ (1 / scales.clone().view(torch.float32)[:, None])"
        " * (scales.clone().view(torch.float32)[:, None] / scales.clone().view(torch.float32)[:, None])",
        lambda _: test_quantise.test_zero_and_constant_vectors_are_exact("blocks", 0.0),
    ),
}


def broken(mutant: Mutant) -> Callable:
    """Returns the method with its line changed."""
    source = textwrap.dedent(inspect.getsource(mutant.method))
    assert source.count(mutant.old) == 1, f"{mutant.method.__qualname__} has no single {mutant.old}"
    made: dict[str, Callable] = {}
    exec(source.replace(mutant.old, mutant.new), mutant.method.__globals__, made)
    return made[mutant.method.__name__]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_island_is_found_out(name, monkeypatch, tmp_path):
    mutant = MUTANTS[name]
    owner = next(each for each in OWNERS if mutant.method in vars(each).values())
    monkeypatch.setattr(owner, mutant.method.__name__, broken(mutant))
    with pytest.raises(AssertionError) as found:
        mutant.test(tmp_path)
    assert "waits in vain" not in str(found.value)
