"""Soft overlong punishment: a penalty that grows over the last tokens before the limit.

     0                                 L ≤ max_tokens − buffer
    (max_tokens − buffer − L) / buffer      in between
    −1                                 L ≥ max_tokens, or the rollout was truncated

Source: DAPO, arXiv 2503.14476, §3.4, eq. 13; there max_tokens = 20480 and buffer = 4096.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.records import Rollout
from pipelinerl.rewards.base import lengths


@dataclass(frozen=True)
class Overlong:
    max_tokens: int
    buffer: int  # tokens

    name = "overlong"
    subtracts = True

    def __post_init__(self):
        if not 1 <= self.buffer <= self.max_tokens:
            raise ValueError(f"buffer must be from 1 to max_tokens={self.max_tokens}, not {self.buffer}")

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        by_length = np.clip((self.max_tokens - self.buffer - lengths(rollouts)) / self.buffer, -1.0, 0.0)
        truncated = [rollout.status == "truncated" for rollout in rollouts]
        return np.where(truncated, -1.0, by_length)
