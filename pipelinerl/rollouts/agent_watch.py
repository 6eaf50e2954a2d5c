"""Watches the attempts of agents: failing programs, answers that nobody read, refused fields. Pure state."""

from collections import Counter
from collections.abc import Iterator, Mapping

from pipelinerl.health.rules import Alarm

FEWEST = 100  # attempts before an alarm
CRASHED_SHARE = 0.05  # of the attempts
UNREAD_SHARE = 0.01  # of the tokens sampled, or of the requests
NAMES = {"agent_crashed", "endpoint_tokens", "endpoint_unread", "endpoint_called_off", "endpoint_requests"}


class AgentWatch:
    """Counts the metrics of attempts. Each alarm is raised once in a process."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._raised: set[Alarm] = set()

    def observe(self, metrics: Mapping[str, float]) -> Iterator[Alarm]:
        """Adds an attempt. Yields the alarms that it raises."""
        if "agent_crashed" not in metrics:
            return
        self._sums["attempts"] += 1
        self._sums.update({name: int(number) for name, number in metrics.items() if name in NAMES})
        for alarm in self._signs(is_refused=metrics.get("endpoint_unsupported", 0) > 0):
            if alarm not in self._raised:
                self._raised.add(alarm)
                yield alarm

    def _signs(self, is_refused: bool) -> Iterator[Alarm]:
        sums = self._sums
        if is_refused:
            yield Alarm.FIELD_REFUSED
        if sums["attempts"] < FEWEST:
            return
        if sums["agent_crashed"] > CRASHED_SHARE * sums["attempts"]:
            yield Alarm.AGENTS_FAIL
        tokens = sums["endpoint_tokens"] + sums["endpoint_unread"]
        left = sums["endpoint_called_off"]
        if sums["endpoint_unread"] > UNREAD_SHARE * tokens or left > UNREAD_SHARE * sums["endpoint_requests"]:
            yield Alarm.ANSWERS_UNREAD
