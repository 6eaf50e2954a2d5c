"""The services of a run (reference, judging, those of the weight transport): started again where they were.

A reference server that the preprocessor has condemned is ended first.
"""

from collections.abc import Mapping

from contracts.records import ReferenceCondemned
from pipelinerl.launcher.executors.base import Ended, Fate
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.supervising.ends import SERVICE_ROLES, JobFailedError, Restarts, is_alive
from pipelinerl.launcher.supervising.events import News, RestartLog
from pipelinerl.launcher.supervising.job_starter import JobStarter
from pipelinerl.launcher.wants import members_of
from pipelinerl.process import REFUSED
from pipelinerl.streams import Streams


class ServiceJobs:
    def __init__(self, placed: PlacedRun, starter: JobStarter, streams: Streams, told: RestartLog):
        members = members_of(placed.config)
        self._roles = {want.name: role for role, want in members if role in SERVICE_ROLES}
        most = placed.config.restarts.services  # of one service within ten minutes
        self._restarts = {name: Restarts(most, shortest_s=0.5, longest_s=30) for name in self._roles}
        self._executor = placed.executor
        self._starter = starter
        self._news = News(streams, "preprocessor_events", ReferenceCondemned)
        self._why: dict[str, str] = {}  # it was condemned, of those that have not begun again
        self._told = told

    def start(self) -> None:
        """Starts them all."""
        for name in self._roles:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Starts the service of this name in its place."""
        self._why.pop(name, None)
        self._starter.start(name, self._roles[name])

    def tend(self, fates: Mapping[str, Fate], now: float) -> None:
        """Starts again those that have ended. Raises JobFailedError where one has ended too often.

        One that is lost is given another place together with the workers, to whom its address is new.
        """
        if "reference" in self._roles:
            self._hear_preprocessor(fates)
        for name, restarts in self._restarts.items():
            fate = fates.get(name)
            if not isinstance(fate, Ended):
                continue
            if not restarts.is_pending:
                restarts.ended(now, fate.status)
            if restarts.is_spent:
                raise JobFailedError(self._why_no_more(name, fate))
            if restarts.is_due(now):
                self._told.restarted(name, self._how_it_ended(name, fate))
                self.start_one(name)

    def _why_no_more(self, name: str, fate: Ended) -> str:
        how = self._how_it_ended(name, fate)
        spent = self._restarts[name].spent("restarts.services")
        return how if fate.status == REFUSED else f"{how}; {spent}"

    def _hear_preprocessor(self, fates: Mapping[str, Fate]) -> None:
        for condemned in self._news.read():
            if is_alive(fates.get("reference")):
                self._why["reference"] = condemned.why
                self._executor.end(["reference"])

    def _how_it_ended(self, name: str, fate: Ended) -> str:
        why = self._why.get(name)
        return f"{name} hung ({why})" if why else self._starter.how_it_ended(name, fate)
