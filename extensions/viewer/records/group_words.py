"""Describes records about a group as text. Used by `group_story`."""

from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from contracts.records import Rollout, Settled, TrainingSequence
from extensions.viewer.one_line import shortened
from extensions.viewer.records.group_history import RowShare
from pipelinerl.report.prompt_messages import asked_in, parts_of, special_ids
from pipelinerl.streams.drop_reasons import meaning_of


def describe_drop(reason: str) -> str:
    """Returns a drop reason with its explanation."""
    return f"dropped as {reason}: {meaning_of(reason).full}"


def describe_left_out(rollout: Rollout | None, reason: str | None) -> str:
    """Returns why a rollout is in no row of its group's step. reason: the filter's reason, if recorded."""
    if reason:
        return f"left out of the loss as {reason}, it counts in the baseline alone"
    if rollout and rollout.failed:
        return "in no row, since it failed: it has no part in the baseline either"
    return "in no row: a filter took it out of the loss, and the records do not say which"


def describe_end(rollout: Rollout) -> str:
    """Returns a rollout's duration, status, reward, tokens, weight versions and servers, and its reason."""
    servers = ", ".join(sorted({completion.server for completion in rollout.completions} - {""}))
    versions = ", ".join(map(str, rollout.versions)) or "none"
    reward = "no reward" if rollout.failed else f"reward {rollout.reward:g}"
    return (
        f"rollout {rollout.rollout_id} ends after {rollout.finished_at - rollout.started_at:.2f} s: "
        f"{rollout.status}, {reward}, {rollout.sampled_tokens} tokens, weight versions {versions}"
        f"{f', on {servers}' if servers else ''}"
        f"{f'; {rollout.reason}' if rollout.reason else ''}"
    )


def describe_prompt(rollout: Rollout, tokenizer: Tokenizer) -> str:
    """Returns in one line what a rollout's first prompt asks."""
    if not rollout.completions:
        return "no tokens"
    ids = rollout.completions[0].prompt_token_ids.tolist()
    return shortened(asked_in([*parts_of(ids, tokenizer, special_ids(tokenizer))]), from_end=False)


def describe_answer(rollout: Rollout, tokenizer: Tokenizer) -> str:
    """Returns in one line what a rollout sampled last."""
    if not rollout.completions:
        return "no tokens"
    text = tokenizer.decode(rollout.completions[-1].token_ids.tolist())
    return f"“{shortened(text, from_end=True)}”"


def describe_share(share: RowShare) -> Iterator[str]:
    """Yields a line about the row, then one for each of the group's sequences."""
    masked = (
        f"; on_stale=mask took {share.masked_tokens} tokens out of this row" if share.masked_tokens else ""
    )
    made = f"the step that begins with version {share.step}"
    yield f"in row {share.index} of {made}, in the micro-batch of trainer rank {share.rank}{masked}"
    for sequence in share.sequences:
        yield f"  {sequence.rollout_id}: {describe_sequence(sequence, share.step)}"


def describe_sequence(sequence: TrainingSequence, step: int) -> str:
    """Returns a sequence's advantages, its number of tokens in the loss, and their lags."""
    sampled = sequence.versions >= 0
    of_answers = sampled | sequence.loss_mask  # demonstrated answers are not sampled
    advantages = ", ".join(f"{value:.4g}" for value in np.unique(sequence.advantages[of_answers]))
    in_loss = sequence.tokens_in_loss
    lags = step - sequence.versions[sequence.loss_mask & sampled]
    lag = f", lag {', '.join(map(str, np.unique(lags)))}" if len(lags) else ""
    of = (
        f"{in_loss} of {sampled.sum()} sampled tokens"
        if sampled.any()
        else f"{in_loss} tokens, none sampled,"
    )
    return f"advantage {advantages}, {of} in the loss{lag if in_loss else ', so it teaches nothing'}"


def describe_settled(settled: Settled) -> str:
    """Returns the outcome of the settled groups."""
    if settled.reason is None:
        return f"trained: its step made version {settled.version}"
    return describe_drop(settled.reason) + (f" ({settled.why})" if settled.why else "")
