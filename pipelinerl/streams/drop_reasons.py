"""Descriptions of the reasons for which groups are dropped. Pure."""

from typing import NamedTuple

from contracts.records import DropReason


class Meaning(NamedTuple):
    """A description. brief: a phrase beside a count of groups. full: a clause about one group, "it"."""

    brief: str
    full: str


MEANINGS = {
    DropReason.ZERO_ADVANTAGE: Meaning(
        "all rewards equal", "all its rewards are equal, so comparing its rollouts teaches nothing"
    ),
    DropReason.OVERLONG: Meaning(
        "answers cut off", "its rollouts were truncated, at the token limit or out of time"
    ),
    DropReason.ADVANTAGE_RANGE: Meaning(
        "an advantage too large", "its advantages are larger than rewards can explain"
    ),
    DropReason.STALE: Meaning(
        "sampled by weights older than max_lag allows",
        "some of its tokens were sampled by weights older than max_lag allows",
    ),
    DropReason.FAILED: Meaning(
        "too few rollouts without failure",
        "fewer of its rollouts ended without failure than its advantage needs",
    ),
    DropReason.NONFINITE: Meaning(
        "a gradient that was not finite",
        "the gradient of its step was not finite, so that step changed nothing",
    ),
    DropReason.TRAINING_DONE: Meaning(
        "left over at the end", "it was still in the pipeline when the last step closed"
    ),
    DropReason.INTERRUPTED: Meaning(
        "in flight at a stop",
        "it was in flight when the run stopped, or servers had failed a rollout of it",
    ),
    DropReason.ROLLED_BACK: Meaning(
        "sampled by weights that were undone",
        "some of its tokens were sampled by weights that the resumed run does not have",
    ),
    DropReason.TOKEN_FIELDS: Meaning(
        "sampled with other token fields", "it was sampled under another declaration of token fields"
    ),
    DropReason.TOO_LONG: Meaning(
        "a rollout longer than packing.micro_batch_tokens allows",
        "one of its rollouts has more tokens than packing.micro_batch_tokens allows, and none is split",
    ),
    "success_band": Meaning(
        "all right or all wrong",
        "all of its rollouts are right, or none is, so comparing them teaches nothing",
    ),
    "negative_reward": Meaning(
        "a reward below 0", "the advantage needs rewards from 0 on, and one of its rewards is below"
    ),
    "reward_not_0_or_1": Meaning(
        "a reward other than 0 and 1",
        "the advantage needs rewards of 0 and 1, and one of its rewards is another",
    ),
}
NO_COMPONENT = "no_component_"  # prefix of the name of a reward component
OWN = Meaning("a reason of the run's own", "a filter or an advantage of the run's own gives this reason")


def meaning_of(reason: str) -> Meaning:
    """Returns the description of a reason, which may be the word of a user's filter."""
    if reason.startswith(NO_COMPONENT):
        name = reason.removeprefix(NO_COMPONENT)
        return Meaning(
            f"no reward component {name}",
            f"the advantage needs the reward component {name}, which one of its rollouts lacks",
        )
    return MEANINGS.get(reason, OWN)
