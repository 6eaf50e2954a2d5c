"""What the reference server scores of a sequence: itself, or its completions after other prompts. Pure.

A domain may give a completion a prompt for the reference alone (`Completion.reference_prompt`), such as one
that has the answer. The scores of the same tokens after that prompt take the place of the others.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from contracts.records import TrainingSequence


def to_score(sequence: TrainingSequence) -> Iterator[list[int]]:
    """Yields the token ids of each request.

    They are those of the sequence, unless all that it has in the loss has other prompts. Those of each
    completion with a prompt of its own follow.
    """
    if _has_own_scores(sequence):
        yield sequence.token_ids.tolist()
    for other in sequence.reference_prompts:
        yield [*other.token_ids.tolist(), *sequence.token_ids[other.start : other.end].tolist()]


def with_scores(sequence: TrainingSequence, logprobs: Iterator[np.ndarray]) -> TrainingSequence:
    """Returns the sequence with its `reference_logprobs`, [T] float32, 0 where nothing is scored.

    `logprobs` yields the scores of each request of `to_score`, without the first token's. The other prompts
    are needed no longer, and left out.
    """
    scores = np.zeros(len(sequence.token_ids), dtype=np.float32)
    if _has_own_scores(sequence):
        scores[1:] = next(logprobs)
    for other in sequence.reference_prompts:
        scores[other.start : other.end] = next(logprobs)[len(other.token_ids) - 1 :]
    return msgspec.structs.replace(sequence, reference_logprobs=scores, reference_prompts=[])


def _has_own_scores(sequence: TrainingSequence) -> bool:
    """Returns whether a token in the loss is scored after the sequence's own prompt."""
    own = sequence.loss_mask.copy()
    for other in sequence.reference_prompts:
        own[other.start : other.end] = False
    return bool(own.any()) or not sequence.reference_prompts
