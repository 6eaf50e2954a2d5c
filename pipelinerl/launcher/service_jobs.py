"""The services of a run, the reference server and the judging service: started again where they were."""

from collections.abc import Iterable, Mapping

from pipelinerl.launcher.executors.base import Ended, Fate
from pipelinerl.launcher.fates import JobFailedError
from pipelinerl.launcher.job_starter import JobStarter
from pipelinerl.launcher.restart_log import RestartLog
from pipelinerl.launcher.restarts import of_a_service
from pipelinerl.launcher.wants import Member


class ServiceJobs:
    """most: restarts of one service within ten minutes."""

    def __init__(self, members: Iterable[Member], starter: JobStarter, told: RestartLog, most: int):
        self._members = {member.want.name: member for member in members}
        self._restarts = {name: of_a_service(most) for name in self._members}
        self._starter = starter
        self._told = told

    def start(self) -> None:
        """Starts them all."""
        for name in self._members:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Starts the service of this name in its place."""
        self._starter.start(name, self._members[name].role)

    def tend(self, fates: Mapping[str, Fate], now: float) -> None:
        """Starts again those that have ended. Raises JobFailedError where one has ended too often.

        One that is lost is given another place together with the workers, to whom its address is new.
        """
        for name, restarts in self._restarts.items():
            fate = fates.get(name)
            if not isinstance(fate, Ended):
                continue
            if not restarts.is_pending:
                restarts.ended(now, fate.status)
            if restarts.is_spent:
                raise JobFailedError(self._starter.how_it_ended(name, fate))
            if restarts.is_due(now):
                self._told.restarted("services", [name], self._starter.how_it_ended(name, fate))
                self.start_one(name)
