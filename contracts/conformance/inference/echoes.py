"""Prompts that end as they began, where more than one token may follow.

It is called by G4. To sample several tokens in one step, a server may guess them from those before. It must
draw them all the same: a guess may not be taken because it is likely enough.
"""

from collections.abc import Sequence

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Weights

TRIED = 64  # prompts
BEFORE = 24  # tokens of a prompt before its echo
LIKELY = (0.15, 0.6)  # probability of what followed at the beginning


def echoes(bench: Bench, weights: Weights, count: int) -> list[list[int]]:
    """Returns at most `count` prompts, each of which begins with its last two tokens.

    The two tokens that follow them there are likely at the end too, but not certain.
    """
    found: list[list[int]] = []
    for seed in range(TRIED):
        order = bench.reference.prompt(BEFORE, seed=3000 + seed)
        after = [*order]
        for _ in range(2):
            after.append(int(_following(bench, weights, after).sort(descending=True).indices[seed % 2]))
        prompt = [*order[-2:], *after[BEFORE:], *order]
        if all(_is_open(bench, weights, prompt + after[BEFORE:i], after[i]) for i in (BEFORE, BEFORE + 1)):
            found.append(prompt)
        if len(found) == count:
            break
    return found


def _is_open(bench: Bench, weights: Weights, before: Sequence[int], token_id: int) -> bool:
    least, most = LIKELY
    return least <= float(_following(bench, weights, before)[token_id].exp()) <= most


def _following(bench: Bench, weights: Weights, before: Sequence[int]) -> torch.Tensor:
    """Returns the `[vocabulary]` log-probabilities of the token after `before`."""
    return bench.reference.distribution(weights, before, [before[-1]])[0]
