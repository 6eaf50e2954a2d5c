"""How patiently a puller fetches."""

from dataclasses import dataclass

from contracts.limits import LONGEST_S


@dataclass(frozen=True)
class PullRules:
    """The times and rates by which a puller gives up a transfer."""

    poll_s: float = 1.0  # between two looks at latest.json
    idle_timeout_s: float = 30.0  # a transfer without a byte for so long is given up
    min_bytes_per_s: int = 65536  # a transfer that is slower than this is given up
    parallel: int = 3  # files that are transferred at the same time

    def longest_s(self, nbytes: int) -> float:
        """Returns the seconds after which a transfer of so many bytes is given up in any case."""
        if self.min_bytes_per_s == 0:
            return LONGEST_S
        return min(LONGEST_S, 2 * self.idle_timeout_s + nbytes / self.min_bytes_per_s)
