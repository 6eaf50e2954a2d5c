"""The token ids that the reference server scores for a sequence. Pure.

A completion with a `Completion.reference_prompt`, such as one that contains the answer, is scored after that
prompt instead of its own.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from contracts.records import TrainingSequence


def to_score(sequence: TrainingSequence) -> Iterator[list[int]]:
    """Yields the token ids to score: the sequence, and each completion after its reference prompt.

    The sequence is left out if all its tokens in the loss have reference prompts.
    """
    if _has_own_scores(sequence):
        yield sequence.token_ids.tolist()
    for other in sequence.reference_prompts:
        yield [*other.token_ids.tolist(), *sequence.token_ids[other.start : other.end].tolist()]


def with_scores(sequence: TrainingSequence, logprobs: Iterator[np.ndarray]) -> TrainingSequence:
    """Returns the sequence with `reference_logprobs` [T] float32, 0 at tokens without a score.

    logprobs: yields the scores of each of `to_score`, without the first token's. The reference prompts are
    removed, because they are not needed any more.
    """
    scores = np.zeros(len(sequence.token_ids), dtype=np.float32)
    if _has_own_scores(sequence):
        scores[1:] = next(logprobs)
    for other in sequence.reference_prompts:
        scores[other.start : other.end] = next(logprobs)[len(other.token_ids) - 1 :]
    return msgspec.structs.replace(sequence, reference_logprobs=scores, reference_prompts=[])


def _has_own_scores(sequence: TrainingSequence) -> bool:
    """Returns True if a token in the loss has no reference prompt."""
    own = sequence.loss_mask.copy()
    for other in sequence.reference_prompts:
        own[other.start : other.end] = False
    return bool(own.any()) or not sequence.reference_prompts
