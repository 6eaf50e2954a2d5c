"""The preprocessor's treatment of a group, in plain code that processes each token by itself."""

import numpy as np

from contracts.records import Completion, Rollout

Token = dict[str, float]  # one token's value of each array
NOT_SAMPLED: Token = {
    "loss_mask": False,
    "behaviour_logprobs": 0.0,
    "versions": -1,
    "advantages": 0.0,
    "mark": 9,
    "weight": -0.5,
}


def plain_sequences(rollout: Rollout, advantages: np.ndarray, last_segments: bool) -> list[list[Token]]:
    """Returns the tokens of each sequence, before stale ones are removed."""
    sequences: list[list[Token]] = []
    for completion, advantage in zip(rollout.completions, advantages, strict=True):
        prompt = completion.prompt_token_ids.tolist()
        before = [token["token_ids"] for token in sequences[-1]] if sequences else []
        if not before or prompt[: len(before)] != before:
            sequences.append([])
            before = []
        sequences[-1] += [{"token_ids": token, **NOT_SAMPLED} for token in prompt[len(before) :]]
        sequences[-1] += [
            {
                "token_ids": completion.token_ids[index],
                "loss_mask": index >= _first_in_loss(completion, last_segments),
                "behaviour_logprobs": completion.logprobs[index],
                "versions": _version(completion, index),
                "advantages": advantage,
                "mark": completion.token_fields["mark"][index],
                "weight": completion.token_fields["weight"][index],
            }
            for index in range(len(completion.token_ids))
        ]
    return sequences


def _first_in_loss(completion: Completion, last_segments: bool) -> int:
    return completion.segments[-1] if last_segments and completion.segments else 0


def _version(completion: Completion, index: int) -> int:
    (version,) = [span.version for span in completion.spans if span.start <= index < span.end]
    return version


def is_stale(token: Token, step: int, max_lag: int | None) -> bool:
    """Returns whether a token in the loss is too old for the step, or newer than its weights."""
    lag = step - token["versions"]
    return token["loss_mask"] and (lag < 0 or (max_lag is not None and lag > max_lag))


def all_agree(group: list[Rollout]) -> bool:
    """Returns whether all rollouts have the same rewards, up to rounding."""
    rewards = [[round(part, 6) for part in (rollout.reward, *rollout.turn_rewards)] for rollout in group]
    return all(of_rollout == rewards[0] for of_rollout in rewards)


def plain_group(
    group: list[Rollout],
    advantages: list[np.ndarray],
    step: int,
    on_stale: str,
    max_lag: int | None,
    last_segments: bool,
) -> tuple[str | None, list[tuple[Rollout, list[list[Token]]]]]:
    """Returns why the group is dropped, or None and the sequences of each rollout in the loss.

    `advantages` are those of the members that did not fail.
    """
    good = [rollout for rollout in group if not rollout.failed]
    if len(good) < 2:
        return "failed", []
    if all_agree(good):
        return "zero_advantage", []
    kept = [pair for pair in zip(good, advantages, strict=True) if pair[0].status != "truncated"]
    if not kept:
        return "overlong", []
    sequences = [(rollout, plain_sequences(rollout, turns, last_segments)) for rollout, turns in kept]
    tokens = [token for _, of_rollout in sequences for sequence in of_rollout for token in sequence]
    stale = [token for token in tokens if is_stale(token, step, max_lag)]
    if stale and on_stale == "drop":
        return "stale", []
    if on_stale == "mask":
        for token in stale:
            token["loss_mask"] = False
    return None, sequences
