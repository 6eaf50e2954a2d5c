"""Normalisations: the weights of tokens in the loss of a step.

A normalisation is a callable: (groups being packed, rollouts of the step) -> token weights, one array [G] per
group. If it needs all groups of a step at once, `whole_step` is True, and rows leave only when their step is
full. Below, B is the number of rollouts of the step, including failed ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class GroupTokens(NamedTuple):
    """A group that is being packed."""

    size: int  # number of members, including failed ones
    tokens: np.ndarray  # [G] tokens in the loss of each rollout that is in the loss


class Normalisation(Protocol):
    whole_step: bool

    def __call__(self, groups: Sequence[GroupTokens], batch_size: int) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class PerSequence:
    """1/B: all tokens have the same weight, so long rollouts have more than short ones.

    A rollout's gradient does not depend on the lengths of others. Source: PipelineRL, arXiv 2509.19128.
    """

    whole_step = False

    def __call__(self, groups: Sequence[GroupTokens], batch_size: int) -> list[np.ndarray]:
        return [np.full(len(group.tokens), 1 / batch_size) for group in groups]


@dataclass(frozen=True)
class PerStepToken:
    """1/N for N tokens of the step in the loss: the mean over tokens.

    Source: token-level loss of DAPO, arXiv 2503.14476, §3.3, as implemented; its eq. 12 is for one group.
    """

    whole_step = True

    def __call__(self, groups: Sequence[GroupTokens], batch_size: int) -> list[np.ndarray]:
        total = max(sum(int(group.tokens.sum()) for group in groups), 1)
        return [np.full(len(group.tokens), 1 / total) for group in groups]


@dataclass(frozen=True)
class PerGroupToken:
    """The mean over the tokens of each group, then over groups (MiniMax-M1, arXiv 2506.13585, eq. 4)."""

    whole_step = False

    def __call__(self, groups: Sequence[GroupTokens], batch_size: int) -> list[np.ndarray]:
        return [
            np.full(len(group.tokens), group.size / batch_size / max(int(group.tokens.sum()), 1))
            for group in groups
        ]


@dataclass(frozen=True)
class PerRolloutToken:
    """The mean over the tokens of each rollout, then over rollouts, as in GRPO (arXiv 2402.03300, eq. 3)."""

    whole_step = False

    def __call__(self, groups: Sequence[GroupTokens], batch_size: int) -> list[np.ndarray]:
        return [1 / (batch_size * np.maximum(group.tokens, 1)) for group in groups]


@dataclass(frozen=True)
class PerTokenLimit:
    """1/(B · L_max) for all tokens (Dr. GRPO, arXiv 2503.20783, §3.2)."""

    max_tokens: int  # L_max

    whole_step = False

    def __post_init__(self):
        if not self.max_tokens > 0:
            raise ValueError(f"max_tokens must be positive, not {self.max_tokens}")

    def __call__(self, groups: Sequence[GroupTokens], batch_size: int) -> list[np.ndarray]:
        return [np.full(len(group.tokens), 1 / (batch_size * self.max_tokens)) for group in groups]
