"""The console view of a run: a live panel on a terminal, a plain line now and then anywhere else.

Run by the launcher, which calls `update` a few times a second. It knows the run by its metrics files
alone; a number that no process has written yet is shown as "–".
"""

import time
from collections import deque
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from pipelinerl.health import Alarm
from pipelinerl.judging.level import isolation_of
from pipelinerl.metrics import MetricsTail, MetricsWriter, metrics_path
from pipelinerl.report.bottleneck_watch import BottleneckWatch
from pipelinerl.report.stillness import Stillness

ALARM = "alarm_"
PROCESSES = ("trainer", "actor", "preprocessor", "judging")
PLAIN_EVERY_S = 5.0
PLAIN_EVERY_STEPS = 5
BUSY = 0.9  # share of the judging workers' time
BUSY_S = 60.0  # after which it is said
ETA_STEPS = 20  # how many of the latest steps the remaining time is judged by


class RunState:
    """What the metrics of a run have reported so far. No files and no clock in here."""

    def __init__(self, max_steps: int):
        self.max_steps = max_steps
        self.step = 0
        self.updates = 0  # publications of weights
        self.servers_alive: int | None = None
        self.heldout_start: float | None = None
        self.latest: dict[str, float] = {}  # "process/name" -> newest number
        self.warnings: list[str] = []  # not yet printed
        self.bottleneck = BottleneckWatch()
        self.isolation: str | None = None  # of the workers that judge
        self._busy_since: float | None = None
        self._step_times: deque[tuple[int, float]] = deque(maxlen=ETA_STEPS + 1)

    def observe(self, process: str, line: dict) -> dict[str, float]:
        """Takes a line of metrics into account. Returns the metrics of the whole run that follow from it."""
        numbers = {name: value for name, value in line.items() if value is not None}
        self.latest |= {f"{process}/{name}": value for name, value in numbers.items()}
        raised = [name.removeprefix(ALARM) for name in numbers if name.startswith(ALARM)]
        self.warnings += [f"warning: step {line['step']}: {name}: {Alarm(name).sentence}" for name in raised]
        if process == "trainer":
            self.updates += "publish_seconds" in numbers
            if not self._step_times or line["step"] > self._step_times[-1][0]:
                self.step = line["step"]
                self._step_times.append((line["step"], line["time"]))
        if process == "judging":
            self._note_busy(line["time"], numbers["busy_share"])
        if self.heldout_start is None:
            self.heldout_start = numbers.get("heldout_success")
        return self.bottleneck.observe(process, line)

    def _note_busy(self, time_s: float, share: float) -> None:
        if share <= BUSY:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = time_s
        elif time_s - self._busy_since >= BUSY_S:
            self._busy_since = float("inf")  # once, until they have had a rest
            waiting = self._say("judging/waiting", ".0f")
            self.warnings.append(
                f"warning: the workers that judge have been busy for {BUSY_S:.0f} s, and {waiting} answers "
                "wait for them: raise judging.workers"
            )

    def remaining_s(self) -> float | None:
        if len(self._step_times) < 2:
            return None
        (first, began) = self._step_times[0]
        (last, ended) = self._step_times[-1]
        return (self.max_steps - last) * (ended - began) / (last - first)

    def facts(self) -> list[tuple[str, str]]:
        """What is shown, in order: label and text."""
        say = self._say
        return [
            ("step", f"{self.step}/{self.max_steps}"),
            ("held-out success", f"{number(self.heldout_start)} → {say('actor/heldout_success')}"),
            ("train success", f"{say('actor/success_rate')}  reward {say('actor/reward_mean')}"),
            ("generated", f"{say('actor/generation_tokens_per_s', ',.0f')} tokens/s"),
            ("trained", f"{say('trainer/trained_tokens_per_s', ',.0f')} tokens/s"),
            ("lag", f"mean {say('trainer/lag_mean')}  max {say('trainer/lag_max', '.0f')}"),
            ("weight updates", self._say_updates()),
            ("servers", f"{number(self.servers_alive, 'd')} alive"),
            ("groups dropped", self._say_dropped()),
            ("bottleneck", self.bottleneck.now.finding),
            *([("judging", self._say_judging())] if self.isolation else []),
            ("time left", duration(self.remaining_s())),
        ]

    def _say(self, name: str, form: str = ".2f") -> str:
        return number(self.latest.get(name), form)

    def _say_updates(self) -> str:
        seconds = self._say("trainer/publish_seconds")
        paused = self._say("trainer/publish_paused_s", ".3f")
        return f"{self.updates}  last {seconds} s, paused {paused} s"

    def _say_judging(self) -> str:
        busy = self._say("judging/busy_share", ".0%")
        return f"{self.isolation}  busy {busy}  waiting {self._say('judging/waiting', '.0f')}"

    def _say_dropped(self) -> str:
        prefix = "preprocessor/dropped_"
        counts = {name.removeprefix(prefix): n for name, n in self.latest.items() if name.startswith(prefix)}
        return "  ".join(f"{reason} {count:.0f}" for reason, count in counts.items() if count) or "none"


class ConsoleView:
    def __init__(self, run_dir: str | Path, max_steps: int):
        self._state = RunState(max_steps)
        paths = {process: metrics_path(Path(run_dir), process) for process in PROCESSES}
        self._tails = {process: MetricsTail(path, from_end=True) for process, path in paths.items()}
        self._stillness = Stillness(time.monotonic())
        self._metrics = MetricsWriter(run_dir, "run")
        self._run_dir = Path(run_dir)
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._printed_at = time.monotonic()
        self._printed_step = 0

    def __enter__(self) -> "ConsoleView":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._poll()
        if self._live:
            self._live.update(render(self._state), refresh=True)
            self._live.stop()
        else:
            self._print_line()

    def update(self, servers_alive: int | None = None) -> None:
        self._state.servers_alive = servers_alive
        self._poll()
        if still := self._stillness.sentence(time.monotonic(), servers_alive):
            self._console.print(still, style="bold yellow", soft_wrap=True)
        if self._live:
            self._live.update(render(self._state), refresh=True)
            return
        waited_s = time.monotonic() - self._printed_at
        if waited_s >= PLAIN_EVERY_S or self._state.step - self._printed_step >= PLAIN_EVERY_STEPS:
            self._print_line()

    def _poll(self) -> None:
        self._state.isolation = isolation_of(self._run_dir)
        new = [(process, line) for process, tail in self._tails.items() for line in tail.read()]
        for process, line in sorted(new, key=lambda item: item[1]["time"]):
            if of_run := self._state.observe(process, line):
                self._metrics.write(line["step"], **of_run)
            self._stillness.observe(process, line, time.monotonic())
        for warning in self._state.warnings:
            self._console.print(warning, style="bold yellow", soft_wrap=True)
        self._state.warnings.clear()
        for sentence in self._state.bottleneck.unsaid:
            self._console.print(sentence, style="bold", soft_wrap=True)
        self._state.bottleneck.unsaid.clear()

    def _print_line(self) -> None:
        print(" | ".join(f"{label} {text}" for label, text in self._state.facts()), flush=True)
        self._printed_at = time.monotonic()
        self._printed_step = self._state.step


def render(state: RunState) -> Panel:
    grid = Table.grid(padding=(0, 2))
    for label, text in state.facts():
        grid.add_row(f"[dim]{label}[/dim]", text)
    grid.add_row("", ProgressBar(total=state.max_steps, completed=state.step, width=40))
    return Panel(grid, title="pipelinerl")


def number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
