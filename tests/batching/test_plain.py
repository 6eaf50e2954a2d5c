"""The rows of random groups against plain code that looks at each token by itself."""

from functools import partial

import numpy as np
import pytest

from contracts.records import TrainingSequence, decode, encode
from pipelinerl.advantages import LeaveOneOut
from pipelinerl.batching.credit import per_turn
from pipelinerl.batching.group_counts import GroupCounts
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.batching.step_formation import StepFormation
from pipelinerl.filters import Overlong, ZeroAdvantage
from pipelinerl.normalisations import PerRolloutToken
from pipelinerl.packing import Fifo
from tests.batching.plain import Token, plain_group
from tests.batching.workload import FIELDS, GROUP_SIZE, random_groups

BATCH_SIZE = 4 * GROUP_SIZE
DTYPES = {
    "token_ids": "i4",
    "loss_mask": "?",
    "behaviour_logprobs": "f4",
    "versions": "i4",
    "advantages": "f4",
}

advantages_of = partial(per_turn, advantage=LeaveOneOut())


@pytest.mark.parametrize("last_segments", [False, True])
@pytest.mark.parametrize("on_stale", ["drop", "mask", "keep"])
@pytest.mark.parametrize("max_lag", [None, 2])
def test_every_token_of_a_row_is_what_plain_code_says(on_stale, last_segments, max_lag):
    steps = formation(StalePolicy(on_stale, max_lag), last_segments)
    reasons = set()
    rows = []
    expected: list[tuple[str, float, list[Token]]] = []  # rollout, weight and tokens of each sequence
    for group in random_groups(seed=7, count=120):
        advantages = advantages_of([rollout for rollout in group if not rollout.failed])
        dropped, kept = plain_group(group, advantages, steps.step, on_stale, max_lag, last_segments)
        outcome = steps.add_group(group)
        assert outcome.dropped == dropped
        reasons.add(dropped)
        rows += outcome.rows
        for rollout, sequences in kept:
            in_loss = sum(token["loss_mask"] for sequence in sequences for token in sequence)
            weight = 1 / (BATCH_SIZE * max(in_loss, 1))
            expected += [(rollout.rollout_id, weight, tokens) for tokens in sequences]
    packed = [sequence for row in rows for sequence in decode(encode(row)).micro_batches[0]]
    assert len(packed) > 100
    for sequence, wanted in zip(packed, expected, strict=False):  # the last step is open
        assert_is(sequence, *wanted)
    assert reasons >= {None, "failed", "zero_advantage"}
    assert ("stale" in reasons) == (on_stale == "drop")
    assert trained(rows) == sum(
        token["loss_mask"] for _, _, tokens in expected[: len(packed)] for token in tokens
    )


def formation(stale: StalePolicy, last_segments: bool) -> StepFormation:
    return StepFormation(
        advantages=advantages_of,
        filters=[ZeroAdvantage(), Overlong()],
        stale=stale,
        sequences=partial(training_sequences, last_segments=last_segments, token_fields=FIELDS),
        normalisation=PerRolloutToken(),
        packing=Fifo(micro_batch_tokens=100, ranks=1),
        batch_size=BATCH_SIZE,
        token_fields=FIELDS,
    )


def assert_is(sequence: TrainingSequence, rollout_id: str, weight: float, tokens: list[Token]) -> None:
    assert (sequence.rollout_id, sequence.loss_weight) == (rollout_id, weight)
    arrays = {name: getattr(sequence, name) for name in DTYPES} | sequence.token_fields
    dtypes = DTYPES | {name: field.array_dtype for name, field in FIELDS.items()}
    assert arrays.keys() == dtypes.keys()
    for name, array in arrays.items():
        wanted = np.array([token[name] for token in tokens], dtype=dtypes[name])
        assert array.dtype == wanted.dtype
        assert array.tobytes() == wanted.tobytes(), name


def trained(rows) -> int:
    counts = GroupCounts()
    for row in rows:
        counts.train(row)
    return counts.metrics()["useful_tokens"]
