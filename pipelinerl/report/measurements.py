"""Computes the measurements of a run's last steps from lines of its processes' metrics. Pure."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Line = Mapping[str, float | None]

FEWEST_STEPS = 3  # needed to find a bottleneck
PHASES = ("open", "gather", "send", "confirm")
BLOCKED = "blocked_"
CHANGES = ("sleep", "onload", "offload")  # spans between the phases of servers and trainer that take turns
PROCESSES = ("trainer", "actor", "preprocessor", "judging")


@dataclass(frozen=True)
class Measurements:
    """Shares between 0 and 1 over some steps, except `scoring`; None if they are not recorded."""

    steps: int
    # Shares of the steps' time:
    wait: float  # the trainer waited for the next row
    learn: float  # the trainer computed: forward, objective, backward, optimizer
    publish: float  # the trainer published weights
    quiesce: float  # the trainer waited until the actor had paused
    changing: float  # servers fell asleep, or ranks came to their device or left it
    save: float  # the trainer saved its state
    paused: float  # generation was paused, on the server with the longest pause of each publication
    phases: Mapping[str, float]  # shares of the publications' time, by phase
    busy: float  # share of the request slots in use
    blocked: Mapping[str, float]  # share of the time with an unused slot, by the reason in `BlockedBy`
    outside: float  # share of the started rollouts without a request on a server
    agents: float | None  # share of the started rollouts whose programs are between requests
    scoring: float | None  # mean number of rows at the reference
    judging: float | None  # share of the judging workers' time
    useful: float | None  # share of the sampled tokens that entered the loss
    solved: float | None  # share of the groups that all members solved
    hopeless: float | None  # share of the groups that no member solved


class MetricLines:
    """The lines of metrics of the last `most` steps."""

    def __init__(self, most: int):
        self._lines: dict[str, deque[Line]] = {process: deque() for process in PROCESSES}
        self._steps: deque[Line] = deque(maxlen=most)

    def observe(self, process: str, line: Line) -> bool:
        """Adds a line. Returns True if a step ends with it. Lines of other processes are ignored."""
        lines = self._lines.get(process)
        if lines is None:
            return False
        lines.append(line)
        if process != "trainer" or line.get("step_s") is None:
            return False
        self._steps.append(line)
        self._forget()
        return True

    def _forget(self) -> None:
        """Removes the lines before the first step, except the last one of each process."""
        for lines in self._lines.values():
            while len(lines) > 1 and lines[1]["time"] <= self._begin:
                lines.popleft()

    @property
    def _begin(self) -> float:
        return self._steps[0]["time"] - self._steps[0]["step_s"]

    def measured(self) -> Measurements | None:
        """Returns the measurements of the steps, or None if none are recorded."""
        if not self._steps:
            return None
        begin = self._begin
        end = self._steps[-1]["time"]
        within = {
            process: [line for line in lines if begin < line["time"] <= end]
            for process, lines in self._lines.items()
        }
        places = [line for line in within["actor"] if line.get("places_s")]
        if not places and len(self._steps) >= FEWEST_STEPS:
            return None
        seconds = _sum(self._steps, "step_s")
        grown = _growth(self._lines["preprocessor"], begin, end)
        return Measurements(
            steps=len(self._steps),
            wait=_sum(self._steps, "wait_s") / seconds,
            learn=(_sum(self._steps, "learn_s") + _sum(self._steps, "optimizer_s")) / seconds,
            publish=_sum(self._steps, "publish_s") / seconds,
            quiesce=_sum(self._steps, "quiesce_s") / seconds,
            changing=sum(_sum(self._steps, f"{name}_s") for name in CHANGES) / seconds,
            save=_sum(self._steps, "save_s") / seconds,
            paused=_sum(within["trainer"], "publish_paused_s") / seconds,
            phases=_phases(within["trainer"]),
            busy=_mean(places, "places_busy"),
            blocked={
                name.removeprefix(BLOCKED): _mean(places, name)
                for name in sorted({n for line in places for n in line if n.startswith(BLOCKED)})
            },
            outside=_mean(places, "outside_requests"),
            agents=_plain_mean(places, "agent_share"),
            scoring=grown["reference_s"] / seconds if "reference_s" in grown else None,
            judging=_plain_mean(within["judging"], "busy_share"),
            useful=_ratio(grown["useful_tokens"], grown["sampled_tokens"]),
            solved=_ratio(grown["zero_advantage_solved"], grown["groups"]),
            hopeless=_ratio(grown["zero_advantage_hopeless"], grown["groups"]),
        )


def _sum(lines: Iterable[Line], name: str) -> float:
    return sum(line.get(name) or 0.0 for line in lines)


def _mean(places: list[Line], name: str) -> float:
    """Returns the mean, weighted by the seconds of each line."""
    whole = sum((line.get(name) or 0.0) * line["places_s"] for line in places)
    return whole / _sum(places, "places_s") if places else 0.0


def _plain_mean(lines: list[Line], name: str) -> float | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return sum(values) / len(values) if values else None


def _phases(lines: list[Line]) -> dict[str, float]:
    seconds = {phase: _sum(lines, f"publish_{phase}_s") for phase in PHASES}
    whole = sum(seconds.values())
    return {phase: part / whole for phase, part in seconds.items()} if whole else {}


def _growth(lines: Iterable[Line], begin: float, end: float) -> Counter[str]:
    """Returns the increase of each counter. A counter that decreases was reset by a process restart."""
    grown: Counter[str] = Counter()
    before: Line = {}
    for line in lines:
        if line["time"] > end:
            break
        if line["time"] > begin:
            for name, value in line.items():
                was = before.get(name) or 0.0
                now = value or 0.0
                grown[name] += now - was if now >= was else now
        before = line
    return grown


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
