"""Builds the list of runs, and the comparison of two runs."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from contracts.support.messages import one_line
from extensions.viewer.answers.charts import charts
from extensions.viewer.answers.overview import Answer, overview, read_summary, state_in_words
from extensions.viewer.run_end import RunEnd
from extensions.viewer.runs.directory import Runs
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.config import DamagedConfigError, saved_config
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT
from pipelinerl.report.secrets import without_secrets

DIFFERENCES = 8  # most keys that a row names
EMPTY: Answer = dict.fromkeys(
    (
        "step", "max_steps", "heldout_first", "heldout_last", "lag_mean", "generation_tokens_per_s",
        "useful", "wall_s", "started_at", "note",
    )
)  # fmt: skip
NEVER_COMPARED = {"run_dir", "resume", "plan", "streams.run", "note"}


class Listing:
    """The list of runs. The row of an ended run is cached until its summary changes."""

    def __init__(self, runs: Runs):
        self._runs = runs
        self._ends: dict[str, RunEnd] = {}
        self._ended: dict[str, tuple[int, Answer]] = {}  # name -> summary's modification time, and row

    def answer(self) -> list[Answer]:
        """Returns the runs, newest first, each with its differences from the newest run's configuration."""
        directories = self._runs.directories()
        rows = [self._row(name, path) for name, path in directories.items()]
        rows.sort(key=lambda row: row["started_at"] or 0.0, reverse=True)
        first: dict[str, str] | None = None
        for row in rows:
            config = flat_config(directories[row["name"]])
            first = config if first is None else first
            differing = [_setting(key, config) for key in differences(first, config)]
            more = len(differing) - DIFFERENCES
            row["differs"] = differing[:DIFFERENCES] + ([f"{more} more"] if more > 0 else [])
        return rows

    def _row(self, name: str, path: Path) -> Answer:
        summary_time = _time_of(path / "summary.json")
        known = self._ended.get(name)
        if known and summary_time and known[0] == summary_time:
            return dict(known[1])
        has_ended = self._ends.setdefault(name, RunEnd(path)).is_reached()
        try:
            row = _described(name, path, has_ended)
        except (OSError, KeyError, TypeError, ValueError) as error:  # a damaged file
            return EMPTY | {"name": name, "state": f"cannot be read: {one_line(error)}"}
        if summary_time:
            self._ended[name] = (summary_time, row)
        return dict(row)


def _setting(key: str, config: dict[str, str]) -> str:
    if key in config:
        return f"{key}={config[key]}"
    is_section = any(other.startswith(f"{key}.") for other in config)
    return f"{key} set" if is_section else f"no {key}"


def _described(name: str, path: Path, has_ended: bool) -> Answer:
    summary = read_summary(path) or {}
    config = _config(path)
    evaluations = [line["heldout_success"] for line in _lines(path, "actor") if "heldout_success" in line]
    of_trainer = list(_lines(path, "trainer"))
    trained = [line for line in of_trainer if "step_s" in line]
    useful = [
        line["useful_share"] for line in _lines(path, "preprocessor") if line.get("useful_share") is not None
    ]
    times = [line["time"] for line in of_trainer]
    step = trained[-1]["step"] if trained else 0
    max_steps = config.get("max_steps")
    is_done = bool(summary) and isinstance(max_steps, int) and step >= max_steps
    return {
        "name": name,
        "note": config.get("note"),
        "state": state_in_words(not has_ended, is_done, step, summary),
        "step": step,
        "max_steps": max_steps,
        "heldout_first": evaluations[0] if evaluations else None,
        "heldout_last": evaluations[-1] if evaluations else None,
        "lag_mean": summary.get("lag_mean", trained[-1].get("lag_mean") if trained else None),
        "generation_tokens_per_s": summary.get("generation_tokens_per_s"),
        "useful": useful[-1] if useful else None,
        "wall_s": summary.get("wall_s", times[-1] - times[0] if times else None),
        "started_at": min(_first_times(path), default=None),
    }


def _first_times(path: Path) -> Iterator[float]:
    for file in (path / "metrics").glob("*.jsonl"):
        yield from (line["time"] for line in islice(read_metrics(file), 1))


def _lines(path: Path, process: str) -> Iterator[dict]:
    return read_metrics(metrics_path(path, process))


def _time_of(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _config(path: Path) -> dict:
    try:
        return without_secrets(saved_config(path))
    except (DamagedConfigError, OSError):
        return {}


def flat_config(path: Path) -> dict[str, str]:
    """Returns the run's configuration without secrets: the JSON text of each value by dotted key.

    Paths in the project begin there.
    """
    return {key: text for key, text in flattened(_config(path)) if key not in NEVER_COMPARED}


def flattened(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted key and the JSON text of each leaf of a configuration."""
    if isinstance(value, dict) and value:
        for key, of in value.items():
            yield from flattened(of, f"{name}.{key}" if name else str(key))
    else:
        shown = value.removeprefix(f"{ROOT}/") if isinstance(value, str) else value
        yield name, json.dumps(shown, default=str, ensure_ascii=False)


def differences(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """Returns the keys that have different values or exist in only one of the configurations."""
    return [key for key in {**first, **second} if first.get(key) != second.get(key)]


def comparison(first: OpenRun, second: OpenRun) -> Answer:
    """Returns the results and charts of two runs, and the differences of their configurations."""
    configs = [flat_config(run.run_dir) for run in (first, second)]
    return {
        "runs": [first.name, second.name],
        "results": [_result(run) for run in (first, second)],
        "differences": [
            {"key": key, "values": [config.get(key) for config in configs]} for key in differences(*configs)
        ],
        "charts": {run.name: charts(run) for run in (first, second)},
    }


def _result(run: OpenRun) -> Answer:
    shown = overview(run)
    summary = read_summary(run.run_dir) or {}
    began = shown["started_at"]
    updated = shown["updated_at"]
    successes = [evaluation.success for evaluation in run.following.state.evaluations]
    return {
        "run": run.name,
        "note": shown["note"],
        "state": shown["state"],
        "first": successes[0] if successes else None,
        "last": successes[-1] if successes else None,
        "step": shown["step"],
        "seconds": summary.get("wall_s") or (updated - began if began and updated else None),
        "tokens": sum(server["tokens"] for server in run.queries.servers().values()),
    }
