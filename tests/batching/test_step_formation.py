from functools import partial

import numpy as np
import pytest

from contracts.records import DropReason, VersionSpan, unsampled
from contracts.token_fields import TokenField
from pipelinerl.advantages import Constant, GroupMean, LeaveOneOut, StepStd
from pipelinerl.batching.credit import whole_trajectory
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.batching.step_formation import Groups, StepFormation
from pipelinerl.filters import ZeroAdvantage
from pipelinerl.normalisations import PerSequence
from pipelinerl.packing import Fifo
from tests.builders import completion, group, rollout

ZERO_ADVANTAGE = (ZeroAdvantage(),)


def formation(
    batch_size=4,
    ranks=1,
    budget=1000,
    on_stale="drop",
    max_lag=None,
    buffer_whole_step=False,
    first_step=0,
    token_fields=None,
    advantage=None,
    over_step=None,
    filters=ZERO_ADVANTAGE,
    least_members=2,
    longest_rollout=None,
    split_rollouts=False,
) -> StepFormation:
    return StepFormation(
        partial(whole_trajectory, advantage=advantage or LeaveOneOut()),
        filters,
        StalePolicy(on_stale, max_lag),
        training_sequences,
        PerSequence(),
        Fifo(budget, ranks, first_step, split_rollouts),
        batch_size,
        buffer_whole_step,
        first_step,
        token_fields or {},
        over_step,
        least_members,
        longest_rollout,
    )


def rollout_ids(row) -> list[list[str]]:
    return [[s.rollout_id for s in micro_batch] for micro_batch in row.micro_batches]


def test_a_step_closes_with_exactly_batch_size_rollouts():
    steps = formation(batch_size=4)
    assert steps.add_group(group(0, [0, 1])).rows == []
    (row,) = steps.add_group(group(1, [1, 0])).rows
    assert row.closes_step and row.step == 0 and row.group_ids == [0, 1]
    assert rollout_ids(row) == [["0-0", "0-1", "1-0", "1-1"]]
    steps.add_group(group(2, [0, 1]))
    (row,) = steps.add_group(group(3, [1, 0])).rows
    assert row.step == 1 and row.index == 0


def test_a_failed_member_counts_in_the_step_but_has_no_tokens_and_no_baseline():
    steps = formation(batch_size=3)
    members = [*group(0, [1.0, 0.0]), rollout(0, 2, reward=100.0, status="failed:timeout", completions=[])]
    (row,) = steps.add_group(members).rows
    assert rollout_ids(row) == [["0-0", "0-1"]]
    assert row.closes_step
    sequence = row.micro_batches[0][0]
    assert sequence.advantages[sequence.loss_mask].tolist() == [1.0] * 3
    assert sequence.loss_weight == pytest.approx(1 / 3)


def test_rows_leave_as_they_fill_one_micro_batch_per_rank():
    steps = formation(batch_size=6, ranks=2, budget=10)  # two 5-token rollouts per micro-batch
    assert steps.add_group(group(0, [0, 1])).rows == []
    assert steps.add_group(group(1, [0, 1])).rows == []
    first, last = steps.add_group(group(2, [0, 1])).rows
    assert rollout_ids(first) == [["0-0", "1-0"], ["0-1", "1-1"]]
    assert rollout_ids(last) == [["2-0"], ["2-1"]]
    assert (first.index, first.closes_step, last.index, last.closes_step) == (0, False, 1, True)


def test_a_rollout_beyond_the_budget_gets_a_micro_batch_of_its_own():
    steps = formation(batch_size=2, ranks=2, budget=3)
    (row,) = steps.add_group(group(0, [0, 1])).rows
    assert rollout_ids(row) == [["0-0"], ["0-1"]]


def turns(*lengths: int) -> list:
    """Returns turns of which each begins anew, so that each is a sequence of its own."""
    return [completion([number], [9] * (length - 1)) for number, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("longest", "completions", "tokens"),
    [
        (5, [turns(5), turns(4, 2)], 6),  # of two sequences
        (5, [turns(3), turns(6)], 6),
        (100, [turns(1), turns(*[2] * 60)], 120),
        (5, [turns(5), turns(2, 3)], None),
        (None, [turns(84_500), turns(3)], None),
    ],
)
def test_a_rollout_that_no_micro_batch_holds_drops_its_group_by_name(longest, completions, tokens):
    members = [rollout(7, n, reward=n, completions=c) for n, c in enumerate(completions)]
    added = formation(batch_size=2, budget=3, longest_rollout=longest).add_group(members)
    if tokens is None:
        assert (added.dropped, added.why) == (None, "")
        return
    assert (added.dropped, added.rows) == (DropReason.TOO_LONG, [])
    many = f"has {tokens} tokens in {len(completions[1])} turns, and a micro-batch at most {longest}"
    assert added.why.startswith(f"rollout 7-1 {many}: raise packing.micro_batch_tokens")


def test_a_packing_that_splits_rollouts_has_each_sequence_in_a_micro_batch_that_holds_it():
    many = [completion([number], [9]) for number in range(20)]
    steps = formation(batch_size=2, budget=5, longest_rollout=5, split_rollouts=True)
    members = [rollout(7, n, reward=n, completions=many) for n in range(2)]
    rows = steps.add_group(members).rows
    packed = [sequence for row in rows for (sequences,) in [row.micro_batches] for sequence in sequences]
    assert [sequence.token_ids.tolist() for sequence in packed] == 2 * [[number, 9] for number in range(20)]
    assert max(sum(len(s.token_ids) for s in row.micro_batches[0]) for row in rows) == 4
    long = [rollout(8, n, reward=n, completions=turns(3, 6)) for n in range(2)]
    assert steps.add_group(long).dropped == DropReason.TOO_LONG


def stale_group(group_id: int):
    old_then_new = completion([1], [2, 3], spans=[VersionSpan(0, 0, 1), VersionSpan(2, 1, 2)])
    return group(group_id, [0, 1], completions=[old_then_new])


def advance(steps: StepFormation, to_step: int) -> None:
    for step in range(to_step):
        fresh = completion([1], [2], version=step)
        assert steps.add_group(group(100 + step, [0, 1], completions=[fresh])).dropped is None


@pytest.mark.parametrize("max_lag", [None, 1])
def test_what_a_version_to_come_is_said_to_have_sampled_is_stale(max_lag):
    honest, broken = completion([1], [2], version=2), completion([1], [2], version=3)
    steps = formation(batch_size=2, max_lag=max_lag, first_step=2)
    assert steps.add_group(group(0, [0, 1], completions=[broken])).dropped is DropReason.STALE
    assert steps.add_group(group(1, [0, 1], completions=[honest])).dropped is None


@pytest.mark.parametrize(("on_stale", "old_counts"), [("drop", None), ("mask", False), ("keep", True)])
def test_old_tokens_drop_their_group_or_are_taken_out_of_the_loss_or_stay(on_stale, old_counts):
    steps = formation(batch_size=2, max_lag=1, on_stale=on_stale)
    advance(steps, 2)
    added = steps.add_group(stale_group(0))
    if on_stale == "drop":
        assert added.dropped is DropReason.STALE
        return
    (row,) = added.rows
    assert row.step == 2
    assert [s.loss_mask.tolist() for s in row.micro_batches[0]] == [[False, old_counts, True]] * 2
    assert row.masked_tokens == (0 if old_counts else 2)


def test_held_rows_are_the_same_in_whatever_order_their_groups_come():
    groups = [group(10 + draw, [0, 1], draw=draw) for draw in range(4)]
    rows = []
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        steps = formation(batch_size=8, budget=12, buffer_whole_step=True)
        *before, last = [steps.add_group(groups[i]).rows for i in order]
        assert before == [[], [], []]
        assert last[-1].closes_step and sorted(last[-1].group_ids) == [10, 11, 12, 13]
        rows.append([rollout_ids(row) for row in last])
    assert rows[0] == rows[1] and len(rows[0]) > 1


def test_a_steps_advantages_are_divided_by_their_deviation_over_the_step():
    groups = [group(0, [0, 1]), group(1, [0, 4]), group(2, [5, 6])]
    step_std = StepStd(GroupMean(std=False))
    steps = formation(batch_size=6, budget=12, advantage=step_std, over_step=step_std.over_step)
    *before, rows = [steps.add_group(members).rows for members in groups]
    assert before == [[], []] and len(rows) > 1
    plain = np.array([-0.5, 0.5, -2, 2, -0.5, 0.5])
    expected = plain / (plain.std(ddof=1) + 1e-4)
    found = {s.rollout_id: s.advantages for row in rows for batch in row.micro_batches for s in batch}
    for (_, advantages), wanted in zip(sorted(found.items()), expected, strict=True):
        assert advantages.dtype == np.float32
        np.testing.assert_allclose(advantages[advantages != 0], wanted, rtol=1e-6)


def test_groups_are_released_whole_with_members_in_their_own_order():
    groups = Groups(group_size=3)
    assert groups.collect(rollout(0, 2)) is None
    assert groups.collect(rollout(1, 0)) is None
    assert groups.collect(rollout(0, 0)) is None
    assert [r.rollout_id for r in groups.collect(rollout(0, 1))] == ["0-0", "0-1", "0-2"]


def test_a_group_without_the_declared_token_fields_is_dropped_by_name():
    steps = formation(token_fields={"mark": TokenField(dtype="uint8", fill=9)})
    fields = {"mark": np.zeros(3, dtype=np.uint8)}
    marked = [completion([1, 2], [3, 4, 5], token_fields=fields)]
    assert steps.add_group(group(0, [0, 1])).dropped == DropReason.TOKEN_FIELDS
    assert steps.add_group(group(1, [0, 1], completions=marked)).dropped is None
    failed = rollout(2, 2, status="failed:timeout", completions=[])
    assert steps.add_group([*group(2, [0, 1], completions=marked), failed]).dropped is None
    assert formation().add_group(group(0, [0, 1], completions=marked)).dropped == DropReason.TOKEN_FIELDS


def test_a_group_of_one_is_trained_where_nothing_is_compared():
    steps = formation(batch_size=2, advantage=Constant(), least_members=1, filters=[])
    assert steps.add_group(group(0, [1.0])).dropped is None
    (row, *_) = steps.add_group(group(1, [1.0])).rows
    assert rollout_ids(row) == [["0-0", "1-0"]]
    assert all(s.advantages[s.loss_mask].tolist() == [1.0] * 3 for s in row.micro_batches[0])
    assert formation(batch_size=2).add_group(group(0, [1.0])).dropped == DropReason.FAILED


@pytest.mark.parametrize("on_stale", ["drop", "mask"])
def test_what_nobody_sampled_is_never_stale(on_stale):
    steps = formation(2, on_stale=on_stale, max_lag=0, first_step=40, advantage=Constant(), filters=[])
    answers = group(0, [1.0, 1.0], completions=[unsampled([1], [2, 3])])
    (row, *_) = steps.add_group(answers).rows
    assert row.step == 40
    assert sum(s.tokens_in_loss for s in row.micro_batches[0]) == 4
