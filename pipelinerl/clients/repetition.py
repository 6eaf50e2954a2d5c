"""Repetition: whether the end of a sequence of tokens repeats one block of tokens. A pure function."""

import numpy as np


def repeats(token_ids: np.ndarray, window: int, times: int) -> bool:
    """Returns whether the sequence [T] ends in a block of at most `window` tokens, `times` times in a row.

    That is, the last p · times tokens have the period p for some p ≤ window. Reads at most the last
    window · times tokens.
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
