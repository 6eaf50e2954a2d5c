"""New places for jobs whose nodes are lost: asked for until there are some, or for too long."""

from collections.abc import Iterable, Mapping

from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Executor, Fate, Lost, Placed, Slot, Waiting
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.supervising.fates import JobFailedError
from pipelinerl.launcher.wants import Member

ASK_EVERY_S = 5.0  # where no place can be had
SAY_AFTER_S = 10.0  # that places are waited for


class Relocation:
    """members: the jobs of the run that are no servers. Those of one group are placed together."""

    def __init__(self, members: Iterable[Member], executor: Executor):
        self._wants = [member.want for member in members]
        self._executor = executor
        self._lost: list[str] = []  # names, of which the places are asked for
        self._began = 0.0
        self._ask_at: float | None = None  # None once they are asked for
        self._needs = ""  # what was waited for last
        self._has_said_so = False

    def begin(self, fates: Mapping[str, Fate], now: float) -> None:
        """Gives up the places of every group of which one is lost."""
        groups = {want.group for want in self._wants if isinstance(fates[want.name], Lost)}
        self._lost = [want.name for want in self._wants if want.group in groups]
        self._executor.drop(self._lost)
        self._began = self._ask_at = now
        self._has_said_so = False

    def slots(self, fates: Mapping[str, Fate], now: float) -> dict[str, Slot] | None:
        """Returns the new places, of those jobs that had lost theirs; None while they are waited for.

        Raises JobFailedError where they are waited for longer than `executor.place_timeout_s`.
        """
        if not self._lost:
            return {}
        if self._ask_at is not None:
            self._ask(now)
            return None
        found = [fates[name] for name in self._lost]
        if all(isinstance(fate, Placed) for fate in found):
            return {name: fates[name].slot for name in self._lost}
        if any(isinstance(fate, Lost) for fate in found):
            self.begin(fates, self._began)
        self._needs = next((fate.needs for fate in found if isinstance(fate, Waiting)), self._needs)
        self._wait(now)
        return None

    def _ask(self, now: float) -> None:
        if now < self._ask_at:
            return
        try:
            self._executor.ask(want for want in self._wants if want.name in self._lost)
            self._ask_at = None
        except PlanError as error:
            self._needs = str(error)
            self._ask_at = now + ASK_EVERY_S
            self._wait(now)

    def _wait(self, now: float) -> None:
        waited_s = now - self._began
        if waited_s > self._executor.place_timeout_s:
            raise JobFailedError(
                f"no place for {', '.join(self._lost)} within executor.place_timeout_s="
                f"{self._executor.place_timeout_s:g} s: {self._needs}"
            )
        if waited_s > SAY_AFTER_S and not self._has_said_so:
            self._has_said_so = True
            say(f"{', '.join(self._lost)} wait for a place: {self._needs}")
