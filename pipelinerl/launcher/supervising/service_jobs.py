"""The jobs of the services: the reference server, the judging service, and those of the weight transport.

Each is restarted alone, in its placement.
"""

from collections.abc import Mapping

from contracts.records import ReferenceCondemned
from pipelinerl.launcher.executors.base import Ended, JobState
from pipelinerl.launcher.jobs import PlacedRun
from pipelinerl.launcher.resource_requests import job_specs
from pipelinerl.launcher.supervising.events import EventReader, RestartLog
from pipelinerl.launcher.supervising.failures import SERVICE_ROLES, JobFailedError, Restarts, is_alive
from pipelinerl.launcher.supervising.job_starter import JobStarter
from pipelinerl.process import REFUSED
from pipelinerl.streams import Streams


class ServiceJobs:
    def __init__(self, placed: PlacedRun, starter: JobStarter, streams: Streams, restart_log: RestartLog):
        specs = job_specs(placed.config)
        self._roles = {request.name: role for role, request in specs if role in SERVICE_ROLES}
        limit = placed.config.restarts.services  # of one service within ten minutes
        self._restarts = {name: Restarts(limit, shortest_s=0.5, longest_s=30) for name in self._roles}
        self._executor = placed.executor
        self._starter = starter
        self._events = EventReader(streams, "preprocessor_events", ReferenceCondemned)
        self._condemned_why = ""  # reason, until the reference server is restarted
        self._restart_log = restart_log

    def start(self) -> None:
        for name in self._roles:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        if name == "reference":
            self._condemned_why = ""
        self._starter.start(name, self._roles[name])

    def update(self, states: Mapping[str, JobState], now: float) -> None:
        """Restarts services that have ended. Raises JobFailedError if the budget of one is spent.

        A service whose node is lost is placed again when the workers restart, because its address changes.
        """
        if "reference" in self._roles:
            self._end_condemned_reference(states)
        for name, restarts in self._restarts.items():
            state = states.get(name)
            if not isinstance(state, Ended):
                continue
            if not restarts.is_pending:
                restarts.record_end(now, state.status)
            if restarts.is_spent:
                raise JobFailedError(self._failure(name, state))
            if restarts.is_due(now):
                self._restart_log.restarted(name, self._how_it_ended(name, state))
                self.start_one(name)

    def _failure(self, name: str, state: Ended) -> str:
        how = self._how_it_ended(name, state)
        spent = self._restarts[name].spent_message("restarts.services")
        return how if state.status == REFUSED else f"{how}; {spent}"

    def _end_condemned_reference(self, states: Mapping[str, JobState]) -> None:
        for condemned in self._events.read():
            if is_alive(states.get("reference")):
                self._condemned_why = condemned.why
                self._executor.end(["reference"])

    def _how_it_ended(self, name: str, state: Ended) -> str:
        if name == "reference" and self._condemned_why:
            return f"{name} hung ({self._condemned_why})"
        return self._starter.how_it_ended(name, state)
