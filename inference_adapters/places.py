"""Limits the completions that a server has in progress, so that its memory is limited too."""

import contextlib
from collections.abc import Iterator

from contracts.errors import ContractError, ErrorCode

MOST = 8192  # completions that run or wait; several times as many as an engine generates at a time


class Places:
    """The slots for a server's completions. A request without free slots is refused, and may be retried."""

    def __init__(self, most: int = MOST):
        self.most = most
        self.taken = 0

    def check_prompts(self, prompts: int, n: int) -> None:
        """Raises ContractError if the choices of several prompts exceed the number of slots."""
        if prompts > 1 and prompts * n > self.most:
            why = f"prompt: {prompts} prompts of {n} choices; {self.most} may be under way"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "prompt")

    @contextlib.contextmanager
    def held(self, count: int) -> Iterator[None]:
        """Holds `count` slots while the block runs. Raises ContractError if they are not free."""
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
