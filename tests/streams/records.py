"""The records that the tests of streams write and read back."""

import numpy as np

from contracts.records import Started, TrainingSequence


def event(number: int) -> Started:
    return Started(at=1.0, group_id=number, rollouts=8, draw=number, problem=0)


def numbers(entries) -> list[int]:
    return [entry.record.group_id for entry in entries]


def there(streams, name="events", offset=0) -> list[int]:
    return numbers(streams.reader(name).read(offset, timeout_s=0))


def sequence(rollout_id: str, versions: list[int], in_loss: list[bool], advantage: float) -> TrainingSequence:
    """Returns a prompt of two tokens, then one token of each version."""
    length = 2 + len(versions)
    return TrainingSequence(
        rollout_id=rollout_id,
        group_id=int(rollout_id.split("-")[0]),
        loss_weight=0.25,
        temperature=1.0,
        token_ids=np.arange(length, dtype=np.int32),
        loss_mask=np.array([False, False, *in_loss]),
        behaviour_logprobs=np.zeros(length, dtype=np.float32),
        versions=np.array([-1, -1, *versions], dtype=np.int32),
        advantages=np.array([0, 0] + [advantage] * len(versions), dtype=np.float32),
    )
