"""Makes training sequences with common prefixes, like those of a group.

A backend may compute a common prompt once. The group of `sequences.make_long_pack`, in contrast, is small and
part of a pack with few common tokens.
"""

import numpy as np
from msgspec.structs import replace

from contracts.conformance.trainer.sequences import make_sequences
from contracts.records import TrainingSequence

MEMBERS = 10  # members of the large group
LONG = 60  # common tokens; the last of them are in the loss
SHORT_PROMPT = 20  # tokens before the first one in the loss
LONG_PROMPT = 46  # the same, for two sequences
LATE_PLACE = 40  # position at which the prompts of these two differ
TURN_TOKENS = 30  # tokens of a sequence that is a prefix of another
CLOSE_TEMPERATURES = (0.8, 0.84)


def make_groups(model: str, seed: int) -> list[TrainingSequence]:
    """Returns random groups of one temperature each.

    The first group has a long common prefix, part of which is in the loss. Two sequences differ only in their
    first token, and two late in their prompts. One continues another. Two identical ones have similar
    temperatures.
    """
    lengths = [LONG + 4 + member % 5 for member in range(MEMBERS)] + [50, 50, 56, 60, TURN_TOKENS, 50, 35, 35]
    first, *others = make_sequences(model, lengths, seed)
    members = [_alike(first, other, LONG) for other in others[: MEMBERS - 1]]
    a, b, late, later, turn, turns, cold, warm = others[MEMBERS - 1 :]
    groups = [
        [first, *members],
        [a, replace(_alike(a, b, len(a.token_ids)), token_ids=_other_at(a.token_ids, 0))],
        [late, replace(later, token_ids=_other_at(_joined(late, later, LONG_PROMPT), LATE_PLACE))],
        [turn, _alike(turn, turns, TURN_TOKENS)],
        [
            replace(_alike(cold, other, len(cold.token_ids)), temperature=temperature)
            for other, temperature in zip((cold, warm), CLOSE_TEMPERATURES, strict=True)
        ],
    ]
    prompts = [SHORT_PROMPT, SHORT_PROMPT, LONG_PROMPT, SHORT_PROMPT, SHORT_PROMPT]
    return [
        replace(
            member,
            group_id=number,
            loss_mask=np.arange(len(member.token_ids)) >= prompt,
            temperature=member.temperature if number == len(groups) - 1 else group[0].temperature,
        )
        for number, (group, prompt) in enumerate(zip(groups, prompts, strict=True))
        for member in group
    ]


def _alike(first: TrainingSequence, other: TrainingSequence, length: int) -> TrainingSequence:
    """Returns `other` with the first `length` tokens and the temperature of `first`."""
    return replace(other, token_ids=_joined(first, other, length), temperature=first.temperature)


def _joined(first: TrainingSequence, other: TrainingSequence, length: int) -> np.ndarray:
    return np.concatenate([first.token_ids[:length], other.token_ids[length:]])


def _other_at(token_ids: np.ndarray, place: int) -> np.ndarray:
    """Returns the tokens with a different one at `place`: the first of them that differs from it."""
    changed = token_ids.copy()
    changed[place] = next(token for token in token_ids if token != token_ids[place])
    return changed
