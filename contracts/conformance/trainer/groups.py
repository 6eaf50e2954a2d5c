"""Makes training sequences that begin alike, as a group's members do.

A backend may compute their prompt once. The group of `sequences.make_long_pack` is small, and part of a pack
in which little is alike.
"""

import numpy as np
from msgspec.structs import replace

from contracts.conformance.trainer.sequences import make_sequences
from contracts.records import TrainingSequence

MEMBERS = 10  # of the large group
LONG = 60  # tokens that they have in common, the last of which are learnt from
SHORT_PROMPT = 20  # tokens before the first that is learnt from
LONG_PROMPT = 46  # the same, of two sequences
LATE_PLACE = 40  # where the prompts of these two differ
TURN_TOKENS = 30  # of a sequence that another one continues
CLOSE_TEMPERATURES = (0.8, 0.84)


def make_groups(model: str, seed: int) -> list[TrainingSequence]:
    """Returns random groups of one temperature each.

    Members of the first have a long beginning in common, and learn from a part of it. Two sequences differ in
    their first token alone, and two late in their prompts. One continues another, and two equal ones have
    temperatures that are close.
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
    """Returns the other sequence with the first tokens and the temperature of the first one."""
    return replace(other, token_ids=_joined(first, other, length), temperature=first.temperature)


def _joined(first: TrainingSequence, other: TrainingSequence, length: int) -> np.ndarray:
    return np.concatenate([first.token_ids[:length], other.token_ids[length:]])


def _other_at(token_ids: np.ndarray, place: int) -> np.ndarray:
    """Returns the tokens with another one at a place: the first of them that differs from it."""
    changed = token_ids.copy()
    changed[place] = next(token for token in token_ids if token != token_ids[place])
    return changed
