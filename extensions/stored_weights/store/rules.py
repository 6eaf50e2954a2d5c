"""The timeouts of a puller."""

from dataclasses import dataclass

from contracts.limits import LONGEST_S


@dataclass(frozen=True)
class PullRules:
    """The times and rates by which a puller polls, and cancels transfers."""

    poll_s: float = 1.0  # interval between polls of latest.json
    idle_timeout_s: float = 30.0  # a transfer is cancelled after so long without a byte
    min_bytes_per_s: int = 65536  # a transfer slower than this is cancelled
    parallel: int = 3  # number of parallel transfers

    def longest_s(self, nbytes: int) -> float:
        """Returns the timeout, in seconds, of a transfer of `nbytes`."""
        if self.min_bytes_per_s == 0:
            return LONGEST_S
        return min(LONGEST_S, 2 * self.idle_timeout_s + nbytes / self.min_bytes_per_s)
