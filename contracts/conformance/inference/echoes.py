"""Prompts that end with their first two tokens, for servers with speculative decoding. G4 uses them.

A server may predict tokens from earlier ones. It must not accept a prediction only because it is likely.
"""

from collections.abc import Sequence

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Weights

TRIED = 64  # prompts tried
BEFORE = 24  # tokens of a prompt before the repeated ones
LIKELY = (0.15, 0.6)  # probability range of the predicted tokens


def echoes(bench: Bench, weights: Weights, count: int) -> list[list[int]]:
    """Returns at most `count` prompts, each of which begins with its last two tokens.

    The two tokens after these at the beginning are likely, but not certain, at the end too.
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
    """Returns the [vocabulary] log-probabilities of the token after `before`."""
    return bench.reference.distribution(weights, before, [before[-1]])[0]
