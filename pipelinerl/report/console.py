"""The console view of a run: a live panel on a terminal, or a line per step in a pipe or file.

The launcher calls `update` a few times a second. The view reads only the metrics files of the run, and shows
"–" for a number that has not been written yet.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipelinerl.health import Alarm
from pipelinerl.judging.level import isolation_of
from pipelinerl.metrics import MetricsTail, MetricsWriter, metrics_path
from pipelinerl.report.bottleneck import Finding
from pipelinerl.report.bottleneck_watch import BottleneckWatch
from pipelinerl.report.drops import describe_drops
from pipelinerl.report.newest_warning import newest_warning
from pipelinerl.report.one_problem import OneProblem
from pipelinerl.report.stillness import STILL_S, Stillness
from pipelinerl.report.time_left import STEPS, time_left

ALARM = "alarm_"
PROCESSES = ("trainer", "actor", "preprocessor", "judging")
BUSY = 0.9  # share of the judging workers' time
BUSY_S = 60.0  # time above BUSY after which a warning is printed
UNDECIDED_SHARE = 0.01  # of the judged answers, above which a warning is printed
JUDGED = 200  # answers before that warning
DROPPED = "preprocessor/dropped_"
SEPARATOR = " | "
LEFT_OUT = {"held-out success", "one problem", "now", "weight updates"}  # evaluations have separate lines
EQUAL = ("solved", "hopeless")  # groups whose rewards are equal
SUCCESS = "heldout_success"


class RunState:
    """The state of a run according to its metrics. Pure.

    stop_at: held-out success at which the run ends sooner, or None.
    """

    def __init__(self, max_steps: int, stop_at: float | None = None):
        self.max_steps = max_steps
        self.stop_at = stop_at
        self.evaluations = 0
        self.problem: str | None = None  # one problem with its newest answer
        self.step = 0
        self.updates = 0  # publications of weights
        self.servers_alive: int | None = None
        self.heldout_start: float | None = None
        self.latest: dict[str, float] = {}  # "process/name" -> newest number
        self.warnings: list[str] = []  # not printed yet
        self.lines: list[str] = []  # lines of steps and evaluations, not printed yet
        self.bottleneck = BottleneckWatch()
        self.isolation: str | None = None  # isolation of the judging workers
        self._busy_since: float | None = None
        self._undecided: set[str] = set()  # metrics that were warned of
        self._ends: deque[tuple[int, float]] = deque(maxlen=STEPS + 1)  # ends of steps, in unix seconds

    def observe(self, process: str, line: dict) -> dict[str, float]:
        """Observes a line of metrics. Returns metrics of the complete run that result from it."""
        numbers = {name: value for name, value in line.items() if value is not None}
        self.latest |= {f"{process}/{name}": value for name, value in numbers.items()}
        raised = [name.removeprefix(ALARM) for name in numbers if name.startswith(ALARM)]
        self.warnings += [f"warning: step {line['step']}: {name}: {Alarm(name).sentence}" for name in raised]
        of_run = self.bottleneck.observe(process, line)
        if process == "trainer":
            self.updates += "publish_seconds" in numbers
            self._note_step(line["step"], line["time"])
        if process == "judging":
            self._note_busy(line["time"], numbers["busy_share"])
            self._note_undecided(line["step"], numbers)
        if SUCCESS in numbers:
            self.evaluations += 1
            self.lines.append(evaluation_line(numbers, self.heldout_start))
            self.heldout_start = numbers[SUCCESS] if self.heldout_start is None else self.heldout_start
        return of_run

    def _note_step(self, step: int, time_s: float) -> None:
        """Records the end of a step. The first line, or one of an earlier step, is the start of a trainer."""
        begins = not self._ends or step < self.step
        if begins:
            self._ends.clear()
        elif step == self.step:
            return
        self.step = step
        self._ends.append((step, time_s))
        if not begins:
            self.lines.append(step_line(self.facts(time_s)))

    def _note_busy(self, time_s: float, share: float) -> None:
        if share <= BUSY:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = time_s
        elif time_s - self._busy_since >= BUSY_S:
            self._busy_since = float("inf")  # one warning until the share has fallen
            waiting = self._say("judging/waiting", ".0f")
            self.warnings.append(
                f"warning: the workers that judge have been busy for {BUSY_S:.0f} s, and {waiting} answers "
                "wait for them: raise judging.workers"
            )

    def _note_undecided(self, judged: int, numbers: Mapping[str, float]) -> None:
        for name, count in numbers.items():
            is_common = judged >= JUDGED and count > UNDECIDED_SHARE * judged
            if name.startswith("undecided_") and is_common and name not in self._undecided:
                self._undecided.add(name)
                _, why, verifier = name.split("_", 2)
                words = f"{count / judged:.1%} of the judgements are undecided:{why}, by verifier {verifier}"
                self.warnings.append(f"warning: {words} (docs/extend.md, docs/code.md)")

    @property
    def beginning(self) -> str | None:
        """What the run does before its first step."""
        if self.latest.get("trainer/step"):
            return None
        if "trainer/weight_version" not in self.latest:
            return "loading: the servers and the trainer load the model; logs/ has what each of them says"
        return "loaded: the first weights are published, and the first rollouts are sampled"

    def facts(self, now: float) -> list[tuple[str, str]]:
        """Returns the (label, text) pairs of the view. now: unix seconds."""
        say = self._say
        return [
            ("step", f"{self.step}/{self.max_steps}"),
            ("held-out success", f"{number(self.heldout_start)} → {say('actor/heldout_success')}"),
            *([("one problem", self.problem)] if self.problem else []),
            *([("now", self.beginning)] if self.beginning else []),
            ("train success", f"{say('actor/success_rate')}  reward {say('actor/reward_mean')}"),
            ("generated", f"{say('actor/generation_tokens_per_s', ',.0f')} tokens/s"),
            ("trained", f"{say('trainer/trained_tokens_per_s', ',.0f')} tokens/s"),
            ("lag", f"mean {say('trainer/lag_mean')}  max {say('trainer/lag_max', '.0f')}"),
            ("weight updates", self._say_updates()),
            ("servers", f"{number(self.servers_alive, 'd')} alive"),
            ("groups dropped", self._say_dropped()),
            ("bottleneck", self._say_bottleneck()),
            *([("judging", self._say_judging())] if self.isolation else []),
            ("time left", self._say_time_left(now)),
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

    def _say_bottleneck(self) -> str:
        finding = self.bottleneck.now.finding
        return "not yet known" if finding is Finding.NOT_RECORDED else finding

    def _say_time_left(self, now: float) -> str:
        seconds = time_left(self._ends, self.max_steps, now)
        if self.stop_at is None or seconds is None:
            return duration(seconds)
        return f"at most {duration(seconds)}, less once held-out success is {self.stop_at:g}"

    def _say_dropped(self) -> str:
        dropped = {name: count for name, count in self.latest.items() if name.startswith(DROPPED)}
        described = describe_drops({name.removeprefix(DROPPED): count for name, count in dropped.items()})
        solved, hopeless = (self.latest.get(f"preprocessor/zero_advantage_{of}", 0) for of in EQUAL)
        if not solved and not hopeless:
            return described
        learnt = ", as what is learnt looks" if solved > hopeless else ""
        return f"{described}; {solved:.0f} all right{learnt}, {hopeless:.0f} all wrong"


class ConsoleView:
    """The view. stop_at: as of `RunState`. problem: whose answers are shown, if there is one."""

    def __init__(
        self,
        run_dir: str | Path,
        max_steps: int,
        stop_at: float | None = None,
        problem: OneProblem | None = None,
    ):
        self._state = RunState(max_steps, stop_at)
        self._problem = problem
        paths = {process: metrics_path(Path(run_dir), process) for process in PROCESSES}
        self._tails = {process: MetricsTail(path, from_end=True) for process, path in paths.items()}
        self._stillness = Stillness(time.monotonic())
        self._metrics = MetricsWriter(run_dir, "run")
        self._run_dir = Path(run_dir)
        self._evaluations = 0  # whose answers are read
        self._beginning: str | None = None  # that was told last
        # With FORCE_COLOR, rich would move the cursor in a pipe or file too.
        self._console = Console(force_terminal=sys.stdout is not None and sys.stdout.isatty())
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_interactive else None

    def __enter__(self) -> "ConsoleView":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._poll()
        if self._live:
            self._live.update(render(self._state, time.time()), refresh=True)
            self._live.stop()

    def update(self, servers_alive: int | None = None) -> None:
        self._state.servers_alive = servers_alive
        self._poll()
        self._tell_beginning()
        if still := self._stillness.sentence(time.monotonic(), servers_alive):
            warned = newest_warning(self._run_dir, 2 * STILL_S)
            said = f"{still}; {warned}" if warned else still
            self._console.print(said, style="bold yellow", markup=False, soft_wrap=True)
        if self._live:
            self._live.update(render(self._state, time.time()), refresh=True)

    def _poll(self) -> None:
        self._state.isolation = isolation_of(self._run_dir)
        new = [(process, line) for process, tail in self._tails.items() for line in tail.read()]
        for process, line in sorted(new, key=lambda item: item[1]["time"]):
            if of_run := self._state.observe(process, line):
                self._metrics.write(line["step"], **of_run)
            self._stillness.observe(process, line, time.monotonic())
        self._follow_problem()
        for warning in self._state.warnings:
            self._console.print(warning, style="bold yellow", markup=False, soft_wrap=True)
        self._state.warnings.clear()
        for sentence in self._state.bottleneck.unsaid:
            self._console.print(sentence, style="bold", markup=False, soft_wrap=True)
        self._state.bottleneck.unsaid.clear()
        if not self._live:
            print(*self._state.lines, sep="\n", end="\n" if self._state.lines else "", flush=True)
        self._state.lines.clear()

    def _tell_beginning(self) -> None:
        beginning = self._state.beginning
        if not self._live and beginning and beginning != self._beginning:
            print(beginning, flush=True)
        self._beginning = beginning

    def _follow_problem(self) -> None:
        """Reads the answer of new evaluations."""
        if self._problem is None or self._state.evaluations == self._evaluations:
            return
        self._evaluations = self._state.evaluations
        self._problem.read()
        self._state.problem = self._problem.newest()
        if self._state.problem:
            self._state.lines.append(f"  {self._state.problem}")


def render(state: RunState, now: float) -> Panel:
    grid = Table.grid(padding=(0, 2))
    for label, text in state.facts(now):
        grid.add_row(f"[dim]{label}[/dim]", Text(text))
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


def step_line(facts: Sequence[tuple[str, str]]) -> str:
    """Returns the line of a step in a pipe or file, which starts with `step N/M`."""
    return SEPARATOR.join(f"{label} {text}" for label, text in facts if label not in LEFT_OUT)


def evaluation_line(numbers: dict[str, float], first: float | None) -> str:
    """Returns the line of an evaluation in a pipe or file, which starts with `evaluation of version`.

    numbers: the actor's metrics of the evaluation. first: the success of the run's first evaluation.
    """
    sets = {name.removeprefix(f"{SUCCESS}_"): n for name, n in numbers.items() if name.startswith(SUCCESS)}
    success = sets.pop(SUCCESS)
    parts = [_versions(numbers), f"held-out success {success:.3f}"]
    parts += [f"{name} {share:.3f}" for name, share in sets.items()]
    parts += [f"at first {first:.3f}"] if first is not None else []
    if failed := numbers.get("heldout_failed"):
        parts += [f"{failed:.0f} attempts failed"]
    return SEPARATOR.join(parts)


def _versions(numbers: dict[str, float]) -> str:
    first = numbers.get("heldout_first_version", numbers["step"])
    last = numbers.get("heldout_last_version", first)
    which = f"version {first:.0f}" if first == last else f"versions {first:.0f} to {last:.0f}"
    return f"evaluation of {which}"
