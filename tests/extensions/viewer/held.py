"""The contents of trackers, read back by their libraries: `(step, time, numbers)` of each line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

Held = list[tuple[int, float, tuple[tuple[str, float], ...]]]


def lines_of(run_dir: Path, empty: bool = True) -> Held:
    """Returns the lines of all metrics files. `empty`: also lines without numbers."""
    found = []
    for path in (run_dir / "metrics").glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            numbers = {f"{path.stem}/{name}": value for name, value in line.items() if value is not None}
            when = numbers.pop(f"{path.stem}/time")
            step = numbers.pop(f"{path.stem}/step")
            if numbers or empty:
                found.append((step, when, tuple(sorted(numbers.items()))))
    return sorted(found)


def in_tensorboard(run_dir: Path) -> list[tuple[str, int, float, float]]:
    """Returns `(name, step, time, number)` of each number, because an event file has no lines."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    names = events.Tags()["scalars"]
    return sorted((name, e.step, e.wall_time, e.value) for name in names for e in events.Scalars(name))


def as_tensorboard_has_them(lines: Held) -> list[tuple[str, int, float, float]]:
    """Returns the numbers of these lines, in single precision."""
    found = [(name, step, at, float(np.float32(n))) for step, at, numbers in lines for name, n in numbers]
    return sorted(found)


READ_TRACKIO = """
import json, sys
from trackio.fragments import import_inbox_dir
from trackio.sqlite_storage import SQLiteStorage
import_inbox_dir()  # what was written for it while it could not be
print(json.dumps([SQLiteStorage.get_logs("pipelinerl", sys.argv[1]),
                  SQLiteStorage.get_run_config("pipelinerl", sys.argv[1]),
                  len(SQLiteStorage.get_runs("pipelinerl"))]))
"""


def in_trackio(run_dir: Path, directory: Path) -> tuple[Held, dict, int]:
    """Returns the lines, the configuration, and the number of runs in the database in `directory`."""
    from datetime import datetime

    command = [sys.executable, "-c", READ_TRACKIO, run_dir.name]
    read = subprocess.run(
        command, env=os.environ | {"TRACKIO_DIR": str(directory)}, capture_output=True, text=True, check=True
    )
    lines, config, runs = json.loads(read.stdout)
    held = []
    for line in lines:
        when = datetime.fromisoformat(line.pop("timestamp")).timestamp()
        held.append((line.pop("step"), when, tuple(sorted(line.items()))))
    return sorted(held), config, runs


def in_wandb(run_dir: Path) -> tuple[Held, dict]:
    """Returns the lines and the configuration of the only offline run."""
    from extensions.viewer.trackers.wandb_file import records_of

    (path,) = (run_dir / "trackers" / "wandb").glob("offline-run-*/*.wandb")
    held = []
    config = {}
    axes = {}
    for record in records_of(path):
        axes |= {record.metric.glob_name: record.metric.step_metric} if record.HasField("metric") else {}
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            values = {
                (i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item
            }
            numbers = {name: value for name, value in values.items() if "/" in name}
            held.append((values["step"], values["_timestamp"], tuple(sorted(numbers.items()))))
    assert axes["*"] == "step"
    return sorted(held), config
