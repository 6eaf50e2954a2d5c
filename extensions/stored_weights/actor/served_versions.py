"""The weights that each server serves, and the rules by which they may be used. Pure logic, no I/O.

It is needed if servers pull weights by themselves (`weights=relay`).
"""

from collections.abc import Collection
from dataclasses import dataclass

from contracts.inference import WeightsInfo

UNKNOWN = "it has not said which weights it serves"
HOLDING = {"lost": "its weights are lost", "waiting": "it waits for somebody who samples"}  # by state


@dataclass(frozen=True)
class Served:
    """The weights that one server has reported."""

    run: str | None
    version: int
    oldest: int  # version that may sample a request that begins now
    state: str


class ServedVersions:
    """The weights of a run's servers. `most_behind`: maximum lag of usable servers, in versions."""

    def __init__(self, most_behind: int | None):
        self._most_behind = most_behind
        self._served: dict[str, Served] = {}
        self._run = ""
        self.newest = 0  # version that was published last

    def published(self, run: str, version: int) -> None:
        """Records a publication. `run`: id of the trainer's session."""
        self._run = run
        self.newest = version

    def observe(self, url: str, weights: WeightsInfo) -> None:
        """Records a server's report."""
        oldest = weights.version if weights.oldest is None else weights.oldest
        self._served[url] = Served(weights.run, weights.version, oldest, weights.state)

    def forget(self, url: str) -> None:
        """Forgets a server. A later one at the same URL gets no requests until it reports its weights."""
        self._served.pop(url, None)

    @property
    def oldest_usable(self) -> int:
        """The oldest version that may sample for training."""
        return 0 if self._most_behind is None else self.newest - self._most_behind

    def why_held(self, url: str, oldest: int) -> str | None:
        """Returns the reason why the server must not be used if version `oldest` is needed, or None."""
        served = self._served.get(url)
        if served is None:
            return UNKNOWN
        if served.run != self._run:
            return "its weights are not of this run"
        if why := HOLDING.get(served.state):
            return why
        if served.version > self.newest:
            return f"its version {served.version} is newer than the run's"
        if served.oldest < oldest:
            return f"its version {served.oldest} is {self.newest - served.oldest} behind"
        return None

    def behind(self, urls: Collection[str]) -> int:
        """Returns the largest lag of the usable servers, in versions."""
        usable = [url for url in urls if self.why_held(url, self.oldest_usable) is None]
        return max((self.newest - self._served[url].oldest for url in usable), default=0)
