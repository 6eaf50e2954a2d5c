"""What became of the groups, counted: those without a signal, and the tokens that were for nothing."""

from contracts.records import DropReason, MicroBatchRow
from pipelinerl.batching.group_counts import GroupCounts
from pipelinerl.batching.sequences import training_sequences
from tests.builders import completion, rollout


def group(*successes: float, tokens: int = 3):
    sampled = completion([1], [2] * tokens)
    return [
        rollout(0, member, success, completions=[sampled], metrics={"success": success})
        for member, success in enumerate(successes)
    ]


def test_groups_without_a_signal_are_solved_or_hopeless():
    counts = GroupCounts()
    for members in (group(1.0, 1.0), group(1.0, 1.0), group(0.0, 0.0), group(0.0, 1.0)):
        counts.sampled(members)
        counts.drop(members, DropReason.ZERO_ADVANTAGE)
    counts.drop(group(1.0, 1.0), DropReason.STALE)
    of_ranks = [training_sequences(member, [1.0]) for member in group(0.0, 1.0)]
    counts.train(MicroBatchRow(step=0, index=0, micro_batches=of_ranks, closes_step=True))
    metrics = counts.metrics()
    assert (metrics["zero_advantage_solved"], metrics["zero_advantage_hopeless"]) == (2, 1)
    assert (metrics["groups"], metrics["sampled_tokens"], metrics["useful_share"]) == (4, 24, 0.25)
    assert metrics["useful_tokens"] == 6
