"""The interface of stores of rounds: those that an island keeps for others, and those that it has missed."""

from collections.abc import Sequence
from typing import Protocol

from extensions.islands.outer import OuterGradient, Snapshot


class RoundStore(Protocol):
    """The kept rounds of one rank. Rounds of others are verified."""

    url: str  # URL for the others, or ""

    def begin(self, state: Snapshot) -> None:
        """Starts to keep the state of a loaded checkpoint, like `keep`, and drops rounds after it."""

    def keep(self, gradient: OuterGradient, state: Snapshot) -> None:
        """Starts to keep a gradient and the state after it, which must not change before `wait_ended`."""

    def wait_ended(self) -> None:
        """Waits until the last round is kept."""

    def gradients(
        self, begin: int, end: int, sources: Sequence[str], deadline: float
    ) -> list[OuterGradient] | None:
        """Returns the gradients of the rounds in range(begin, end), or None if one is missing.

        deadline: monotonic time after which it returns None.
        """

    def state(self, round: int, sources: Sequence[str], deadline: float) -> Snapshot | None:
        """Returns the newest available state of this round or an earlier one, or None."""

    def close(self) -> None:
        """Ends the store's threads. The kept rounds remain."""


class NoRounds:
    """A store that keeps nothing."""

    url = ""

    def begin(self, state: Snapshot) -> None:
        pass

    def keep(self, gradient: OuterGradient, state: Snapshot) -> None:
        pass

    def wait_ended(self) -> None:
        pass

    def gradients(
        self, begin: int, end: int, sources: Sequence[str], deadline: float
    ) -> list[OuterGradient] | None:
        return None

    def state(self, round: int, sources: Sequence[str], deadline: float) -> Snapshot | None:
        return None

    def close(self) -> None:
        pass
