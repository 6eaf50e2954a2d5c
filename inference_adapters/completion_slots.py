"""Limits the number of completions that a server has in progress, and thereby its memory."""

import contextlib
from collections.abc import Iterator

from contracts.errors import ContractError, ErrorCode

MOST = 8192  # completions that run or wait; several times the number that an engine generates at once


class CompletionSlots:
    """A counter of the completions in progress, with a maximum. Requests beyond it get `overloaded`."""

    def __init__(self, most: int = MOST):
        self.most = most
        self.taken = 0

    def check_prompts(self, prompts: int, n: int) -> None:
        """Raises ContractError if a request of several prompts can never get enough slots."""
        if prompts > 1 and prompts * n > self.most:
            why = f"prompt: {prompts} prompts of {n} choices; {self.most} may be under way"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "prompt")

    @contextlib.contextmanager
    def acquired(self, count: int) -> Iterator[None]:
        """Acquires `count` slots for the block. Raises ContractError if fewer are free."""
        if self.taken + count > self.most:
            raise ContractError(
                ErrorCode.OVERLOADED,
                f"{self.taken} completions are under way, and {self.most} may be: ask again later",
            )
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count
