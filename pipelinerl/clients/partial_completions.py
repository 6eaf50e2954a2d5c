"""Partial rollouts: completions sampled in several requests, each with a token budget. Pure, no I/O.

A completion that reaches a request's budget is resumed later from its tokens, unless it repeats itself.
Source: Kimi k1.5, arXiv 2501.12599, §2.6.2.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from contracts.records import Array, Completion, VersionSpan
from contracts.token_fields import TokenFieldError
from pipelinerl.config import RepetitionConfig, RolloutConfig


@dataclass(frozen=True)
class SegmentPolicy:
    segment_tokens: int | None = None  # None = one request per completion
    repetition: RepetitionConfig | None = None

    @classmethod
    def of(cls, config: RolloutConfig) -> "SegmentPolicy":
        return cls(config.segment_tokens, config.repetition)

    def budget(self, left: int) -> int:
        """Returns the token budget of the next request of a completion that may get `left` more tokens."""
        return min(left, self.segment_tokens or left)

    def unfinished(self, completion: Completion, max_tokens: int) -> bool:
        """Returns True if the completion ended at the budget of its last segment."""
        begin = completion.segments[-1] if completion.segments else 0
        full = len(completion.token_ids) - begin == self.segment_tokens
        return completion.finish_reason == "length" and full and len(completion.token_ids) < max_tokens

    def stopped(self, completion: Completion) -> Completion:
        """Returns the completion, finished with `repetition` if it was cut short and repeats itself."""
        rule = self.repetition
        cut_short = completion.finish_reason == "length"
        if rule and cut_short and repeats(completion.token_ids, rule.window, rule.times):
            return msgspec.structs.replace(completion, finish_reason="repetition")
        return completion


def without_tokens(prompt: list[int], temperature: float) -> Completion:
    """Returns a completion that was cut short before its first token."""
    return Completion(
        prompt_token_ids=np.array(prompt, dtype=np.int32),
        token_ids=np.empty(0, dtype=np.int32),
        logprobs=np.empty(0, dtype=np.float32),
        spans=[],
        temperature=temperature,
        finish_reason="length",
    )


def joined(before: Completion, after: Completion) -> Completion:
    """Returns two segments as one completion; the prompt of `after` ends with the tokens of `before`."""
    start = len(before.token_ids)
    spans = [*before.spans]
    for span in after.spans:
        begin = start + span.start
        if spans and spans[-1].version == span.version:
            begin = spans.pop().start
        spans.append(VersionSpan(span.version, begin, start + span.end))
    return msgspec.structs.replace(
        before,
        token_ids=np.concatenate([before.token_ids, after.token_ids]),
        logprobs=np.concatenate([before.logprobs, after.logprobs]),
        spans=spans,
        segments=[*before.segments, start],
        finish_reason=after.finish_reason,
        server=after.server,
        ended=after.ended,
        token_fields=_joined_fields(before.token_fields, after.token_fields),
    )


def _joined_fields(before: dict[str, Array], after: dict[str, Array]) -> dict[str, Array]:
    """Returns the concatenated arrays. Raises TokenFieldError if a segment lacks one."""
    if before.keys() != after.keys():
        names = ", ".join(sorted(before.keys() ^ after.keys()))
        raise TokenFieldError(f"the segments of a completion do not all carry the token fields {names}")
    return {name: np.concatenate([before[name], after[name]]) for name in before}


def prompt_of_next(completion: Completion) -> list[int]:
    return [*completion.prompt_token_ids.tolist(), *completion.token_ids.tolist()]


def repeats(token_ids: np.ndarray, window: int, times: int) -> bool:
    """Returns True if a sequence [T] ends in `times` consecutive copies of a block of at most `window`
    tokens.

    That is, the last p · times tokens have the period p for some p ≤ window.
    """
    if window < 1 or times < 2:
        raise ValueError(f"window must be at least 1 and times at least 2, not {window} and {times}")
    longest = min(window, len(token_ids) // times)
    if longest == 0:
        return False
    before = token_ids[-longest - 1 : -1][::-1]  # [longest] the tokens p = 1, 2, ... before the last
    periods = np.flatnonzero(before == token_ids[-1]) + 1
    return any(_has_period(token_ids[-p * times :], p) for p in periods)


def _has_period(token_ids: np.ndarray, period: int) -> bool:
    return np.array_equal(token_ids[period:], token_ids[:-period])
