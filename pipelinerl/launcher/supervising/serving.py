"""The inference servers of a run: how many there are to be, and what the trainer says of them.

The supervisor calls `tend` a few times a second. What becomes of each is in `server_job.py`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

from contracts.records import ServerCondemned, WeightsPublished
from pipelinerl.launcher.executors.base import Ended, Fate, Lost, Want
from pipelinerl.launcher.supervising.ends import is_alive
from pipelinerl.launcher.supervising.events import News
from pipelinerl.launcher.supervising.server_job import Means, ServerJob
from pipelinerl.streams import Streams


class Servers:
    """Tends the jobs of all servers, and knows how many there are to be.

    longest_wait_s: of a server for a place.
    """

    def __init__(self, wants: Iterable[Want], means: Means, streams: Streams, longest_wait_s: float):
        self._means = means
        now = time.monotonic()
        self._jobs = {want.name: ServerJob(want, means, waiting_since=now) for want in wants}
        self._news = News(streams, "trainer_events", WeightsPublished, ServerCondemned)
        self._longest_wait_s = longest_wait_s
        self.refusal: str | None = None  # why the trainer condemned a server last
        self.ended_last = next(iter(self._jobs))  # name of the server

    def tend(self, fates: Mapping[str, Fate], now: float) -> None:
        """Does what the fates of the servers ask for."""
        self._hear_trainer()
        for name, job in self._jobs.items():
            fate = fates.get(name)
            if isinstance(fate, Ended | Lost):
                self.ended_last = name
            job.tend(fate, now)

    def join_again(self) -> None:
        """Says who is a server, to workers that begin again: they go by what is said since then."""
        for job in self._jobs.values():
            job.join_again()

    def scale(self, wants: Sequence[Want], fates: Mapping[str, Fate], now: float) -> None:
        """Starts servers that are missing, or ends those beyond the number of `wants`.

        Those that do not serve are ended first.
        """
        kept = sorted(self._jobs, key=lambda name: not self._jobs[name].url)[: len(wants)]
        for name in self._jobs.keys() - kept:
            self._jobs[name].let_go(fates.get(name), now)
        for name in kept:
            self._jobs[name].keep(fates.get(name), now)
        for want in wants:
            if len(kept) < len(wants) and want.name not in self._jobs:
                self._jobs[want.name] = ServerJob(want, self._means)
                kept.append(want.name)
                self._jobs[want.name].ask(now)

    def serving(self, fates: Mapping[str, Fate]) -> int:
        """Returns the number of servers of the run that are alive."""
        return sum(bool(job.url) and is_alive(fates.get(name)) for name, job in self._jobs.items())

    def may_serve(self, fates: Mapping[str, Fate], now: float) -> bool:
        """Returns whether a server is there, or may still come."""
        jobs = self._jobs.items()
        return any(job.may_serve(fates.get(name), now, self._longest_wait_s) for name, job in jobs)

    def _hear_trainer(self) -> None:
        by_joining = {job.joining: job for job in self._jobs.values() if job.url}
        for record in self._news.read():
            match record:
                case WeightsPublished(joinings=joinings):
                    for joining in by_joining.keys() & set(joinings):
                        by_joining[joining].answered = True
                case ServerCondemned(joining=joining) if joining in by_joining:
                    by_joining[joining].condemned = record
                    self.refusal = record.why
