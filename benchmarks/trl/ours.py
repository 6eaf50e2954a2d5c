"""Runs this project for the comparison: the demo without evaluations, drops and checkpoints."""

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

from benchmarks.trl.curves import WARM_UP, Curve
from contracts.records import Settled, StepClosed, WeightsPublished
from pipelinerl.config import load_config
from pipelinerl.paths import ROOT
from pipelinerl.streams.events import recorded, recorded_events
from pipelinerl.streams.of_run import recorded_streams

SETTINGS = [
    "filters=[]",
    "optimizer.decay_steps=null",
    "eval.every=null",
    "eval.problems=1",
    "checkpoint.every=null",
    "inference.concurrency=${batch_size}",  # TRL generates one batch at a time
]
LOOK_S = 0.25


def run(run_dir: Path, settings: list[str]) -> Curve:
    """Runs the launcher, and returns the curve of the steps."""
    command = [sys.executable, "launch.py", f"run_dir={run_dir}", *SETTINGS, *settings]
    launcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    costs = _watched(launcher)
    if launcher.returncode:
        sys.exit(f"{' '.join(command)} ended with status {launcher.returncode}")
    return _curve(run_dir, costs)


def _watched(launcher: subprocess.Popen) -> list[tuple[float, dict[str, float]]]:
    """Waits for the end. Returns the CPU seconds of the run's processes at different times."""
    ended = threading.Event()
    costs: list[tuple[float, dict[str, float]]] = []

    def look() -> None:
        root = psutil.Process(launcher.pid)
        while not ended.wait(LOOK_S):
            costs.append((time.time(), _cpu_s(root)))

    watcher = threading.Thread(target=look)
    watcher.start()
    launcher.wait()
    ended.set()
    watcher.join()
    return costs


def _cpu_s(root: psutil.Process) -> dict[str, float]:
    """Returns the CPU seconds by name of the process and its descendants, including ended children."""
    used: dict[str, float] = Counter()
    try:
        below = root.children(recursive=True)
    except psutil.NoSuchProcess:
        return used
    for process in [root, *below]:
        try:
            name = _name(process.cmdline())
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used[name] += times.user + times.system + times.children_user + times.children_system
    return used


def _name(command: list[str]) -> str:
    """Returns the role of a process in the run, from the module that it runs."""
    module = command[command.index("-m") + 1] if "-m" in command else "pipelinerl.launcher"
    package, _, rest = module.partition(".")
    return "server" if package == "inference_adapters" else rest.partition(".")[0]


def _curve(run_dir: Path, costs: list[tuple[float, dict[str, float]]]) -> Curve:
    with recorded_streams(run_dir) as streams:
        events = list(recorded_events(streams))
        solved = _solved(recorded(streams, "rollouts"))
    began = next(event.at for event in events if isinstance(event, WeightsPublished))
    ends = {event.version: event.at for event in events if isinstance(event, StepClosed)}
    groups: dict[int, list[int]] = {version: [] for version in ends}
    for event in events:
        if isinstance(event, Settled) and event.version in groups:
            groups[event.version] += event.group_ids
    batches = [
        (ends[version], float(np.mean([share for group in groups[version] for share in solved[group]])))
        for version in sorted(ends)
    ]
    at = [batches[WARM_UP - 1][0], batches[-1][0]]
    times = [time for time, _ in costs]
    spent = {}
    for name in sorted({name for _, used in costs for name in used}):
        first, last = np.interp(at, times, [used.get(name, 0.0) for _, used in costs])
        spent[name] = float(last - first)
    return Curve(began, batches, load_config(run_dir).batch_size, spent)


def _solved(rollouts) -> dict[int, list[float]]:
    """Returns the success of each member, by group."""
    solved: dict[int, list[float]] = {}
    for rollout in rollouts:
        solved.setdefault(rollout.group_id, []).append(rollout.success or 0.0)
    return solved
