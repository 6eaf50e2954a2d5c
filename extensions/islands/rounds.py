"""The interface to kept rounds: those that an island offers to others, and those that it has missed."""

from collections.abc import Sequence
from typing import Protocol

from extensions.islands.outer import OuterGradient, Snapshot


class RoundStore(Protocol):
    """The kept rounds of one rank. Rounds from other islands are verified to be complete."""

    url: str  # at which others fetch them; "" if they cannot

    def begin(self, state: Snapshot) -> None:
        """Keeps the state of a loaded checkpoint, like `keep`, and drops rounds after it."""

    def keep(self, gradient: OuterGradient, state: Snapshot) -> None:
        """Starts to write a gradient and the state after it, which must not change before `wait_ended`."""

    def wait_ended(self) -> None:
        """Waits until the last round is written."""

    def gradients(
        self, begin: int, end: int, sources: Sequence[str], deadline: float
    ) -> list[OuterGradient] | None:
        """Returns the gradients of rounds [begin, end), or None if one is missing.

        deadline: monotonic time after which it returns None.
        """

    def state(self, round: int, sources: Sequence[str], deadline: float) -> Snapshot | None:
        """Returns the newest available state of this round or an earlier one, or None."""

    def close(self) -> None:
        """Stops threads and servers. Files stay."""


class NoRounds:
    """A store that keeps and finds nothing, so its island cannot catch up."""

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
