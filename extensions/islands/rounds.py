"""The rounds that an island keeps for others, and where it finds those that it has missed."""

from collections.abc import Sequence
from typing import Protocol

from extensions.islands.outer import OuterGradient, Snapshot


class RoundStore(Protocol):
    """The kept rounds of one rank. What it returns of others is complete and unchanged."""

    url: str  # where others find them; "" if nowhere

    def begin(self, state: Snapshot) -> None:
        """Begins to keep the state of a loaded checkpoint, and drops rounds after it. As `keep` otherwise."""

    def keep(self, gradient: OuterGradient, state: Snapshot) -> None:
        """Begins to keep a gradient and the state after it, which must not change before `wait_ended`."""

    def wait_ended(self) -> None:
        """Waits until the last round is kept."""

    def gradients(
        self, begin: int, end: int, sources: Sequence[str], deadline: float
    ) -> list[OuterGradient] | None:
        """Returns the gradients of rounds `begin` to `end`, without `end`. Returns None if one is missing.

        deadline: the monotonic time after which it returns None.
        """

    def state(self, round: int, sources: Sequence[str], deadline: float) -> Snapshot | None:
        """Returns the newest state that can be had, of this round or an earlier one, or None."""

    def close(self) -> None:
        """Ends what the store has started. What is kept stays."""


class NoRounds:
    """The store of an island that keeps nothing, so one that is behind cannot catch up."""

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
