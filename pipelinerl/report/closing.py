"""The closing lines of a run's report: the result, the bottleneck, and the next commands."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.support.terminal import printable
from pipelinerl.paths import ROOT
from pipelinerl.report.drops import describe_drops

COLUMN = 2  # spaces between a command and its sentence


def closing_lines(
    summary: dict, run_dir: Path, ended: bool, is_solved: bool, problem: str | None = None
) -> list[str]:
    """Returns the closing lines.

    ended: True if the run is complete, and neither stopped early nor failed.
    is_solved: True if its evaluations meet `stop_at`, including the one after training.
    problem: one problem with its first and its last answer.
    """
    commands = next_commands(summary, run_dir, ended, is_solved)
    width = max(map(len, commands)) + COLUMN
    rows = {"one problem": problem or "none was evaluated", "rollouts": rollouts_of(summary)}
    rows["bound by"] = summary["bottleneck"]
    lines = [
        learnt(summary, ended),
        *(f"  {name:<13}{text}" for name, text in rows.items()),
        "what to do next:",
        *(f"  {command:<{width}}{sentence}" for command, sentence in commands.items()),
    ]
    return [printable(line) for line in lines]


def learnt(summary: dict, ended: bool) -> str:
    """Returns what was learnt: the change of held-out success, the steps, the time, and how it ended."""
    how = "ended" if ended else "stopped before its end"
    if summary["solved_at"] is not None:
        how = "solved"
    counts = {"skipped": summary["steps_skipped"], "without a gradient": summary["steps_without_gradient"]}
    vain = ", ".join(f"{count} of them {how}" for how, count in counts.items() if count)
    length = f"{summary['optimizer_steps']} steps{f' ({vain})' if vain else ''}, {_time(summary)}"
    start = summary["heldout_success_start"]
    end = summary["heldout_success_end"]
    if start is None or len(summary["evaluations"]) < 2:
        return f"{how} after {length}; held-out success was not measured twice"
    learned = "learned" if end > start else "learned nothing that shows:"
    problems = [result["problems"] for result in summary["evaluations"]]
    return f"{learned} {start:.2f} → {end:.2f} held-out success{of_problems(problems)} in {length}; {how}"


def of_problems(counts: Sequence[int]) -> str:
    """Returns the numbers of problems of the first and the last evaluation if they differ, or nothing."""
    return "" if counts[0] == counts[-1] else f" (of {counts[0]} and of {counts[-1]} problems)"


def rollouts_of(summary: dict) -> str:
    """Returns what became of the rollouts, in words."""
    dropped = summary["rollouts_dropped"]
    counts = [f"{summary['rollouts_started']:,} started", f"{summary['rollouts_trained']:,} trained"]
    counts.append(f"dropped {describe_drops(dropped)}")
    if summary["rollouts_in_flight"]:
        counts.append(f"{summary['rollouts_in_flight']:,} in flight")
    return ", ".join([*counts, f"{summary['rollouts_lost']:,} lost"])


def _time(summary: dict) -> str:
    if summary["wall_s"] is None:
        return "no recorded time"
    return f"{summary['wall_s'] / 60:.1f} minutes"


def next_commands(summary: dict, run_dir: Path, ended: bool, is_solved: bool) -> dict[str, str]:
    """Returns the next commands for this run, each with a description."""
    shown = shlex.quote(as_typed(run_dir))
    python = _python()
    launch = f"{python} {shlex.quote(as_typed(ROOT / 'launch.py'))}"
    resume = f"{launch} run_dir={shown} resume=true"
    if not ended:
        further = {resume: "resume it"}
    else:
        more = "" if summary["solved_at"] is not None else f" max_steps={2 * summary['optimizer_steps']}"
        unbounded = " stop_at=null" if is_solved else ""
        further = {f"{resume}{more}{unbounded}": "train it further"}
    pages = {f"{python} -m extensions.viewer {shown}": "look at it in a browser"}
    story = {f"{python} -m extensions.viewer.records group {shown} 0": "read what happened to group 0"}
    return {
        **pages,
        **(story if summary["rollouts_started"] else {}),
        **further,
        f"{launch} --help": "list what another run can change",
    }


def _python() -> str:
    """Returns `python`, or the path of this interpreter if that command does not start it."""
    found = shutil.which("python")
    interpreter = Path(sys.executable)
    if found and Path(found).parent == interpreter.parent and Path(found).samefile(interpreter):
        return "python"
    typed = as_typed(interpreter)
    return shlex.quote(typed if os.sep in typed else os.path.join(os.curdir, typed))


def as_typed(path: Path) -> str:
    """Returns the path relative to the working directory if it is below it, else the absolute path."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative
