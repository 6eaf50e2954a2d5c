"""Builds the overview of a run: its state, bottleneck, main metrics and evaluations."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote_from_bytes

from extensions.viewer.charts import Series
from extensions.viewer.index.run_state import RunState
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.report.closing import of_problems
from pipelinerl.report.drops import describe_drops
from pipelinerl.report.evaluation_table import on_set, rows_of
from pipelinerl.streams.drop_reasons import meaning_of

NOT_TWICE = "held-out success was not measured twice"
Answer = dict[str, object]
Points = Sequence[tuple[int, float]]  # (version, value)


def overview(run: OpenRun) -> Answer:
    """Returns the content of the run's first page."""
    with run.lock:
        state = run.following.state
        metrics = run.following.metrics
        summary = read_summary(run.run_dir) if not run.following.is_live else None
        return {
            "name": run.name,
            "run_dir": str(run.run_dir),
            "state": state_in_words(run.following.is_live, state.is_done, state.step, summary),
            "note": run.config.get("note"),
            "headline": headline(run.following.is_live, state, summary),
            "is_live": run.following.is_live,
            "problem": run.following.problem,
            "step": state.step,
            "max_steps": run.config.get("max_steps"),
            "live_version": state.live_version,
            "servers_alive": len(state.alive_servers) if run.following.is_live else 0,
            "started_at": metrics.began_at,
            "updated_at": metrics.updated_at,
            "bottleneck": _bottleneck(run, summary),
            "drops": describe_drops(state.dropped) if state.dropped else None,
            "tiles": _tiles(metrics.series, metrics.newest),
            "evaluations": _evaluations(state),
            "summary_is_there": summary is not None,
            "indexed": indexed(run),
            "stream_from": as_id(metrics.offsets),
        }


def state_in_words(is_live: bool, is_done: bool, step: int, summary: Answer | None) -> str:
    if is_live:
        return "running"
    if summary and summary.get("solved_at") is not None:
        return "solved"
    if is_done:
        return "ended"
    return f"failed at step {step}" if summary and summary.get("failed") else "stopped before its end"


def headline(is_live: bool, state: RunState, summary: Answer | None) -> str:
    """Returns what was learnt and how the run ended, or is."""
    how = state_in_words(is_live, state.is_done, state.step, summary)
    results = [result.success for result in state.evaluations]
    if len(results) < 2:
        learnt = "held-out success is not measured twice yet" if is_live else NOT_TWICE
    else:
        verb = "learned" if results[-1] > results[0] else "learned nothing that shows:"
        of = of_problems([result.problems for result in state.evaluations])
        learnt = f"{verb} {results[0]:.2f} → {results[-1]:.2f} held-out success{of} in {state.step} steps"
    failed = summary.get("failed") if summary else None
    return f"{learnt}; {how}" + (f": {failed}" if failed and not state.is_done else "")


def indexed(run: OpenRun) -> Answer:
    """Returns the progress of the index."""
    return {**run.following.progress._asdict(), "is_complete": run.following.progress.is_complete}


def as_id(offsets: dict[str, int]) -> str:
    """Encodes the offsets in the metrics files as the identifier of a server-sent event."""
    return ",".join(f"{quote_from_bytes(os.fsencode(p))}:{offset}" for p, offset in sorted(offsets.items()))


def read_summary(run_dir: Path) -> Answer | None:
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _bottleneck(run: OpenRun, summary: Answer | None) -> Answer:
    """Returns the bottleneck of the last steps, or that of the whole run from the summary if it has ended."""
    if summary and isinstance(sentence := summary.get("bottleneck"), str):
        return {"finding": sentence.partition(":")[0], "sentence": sentence}
    found = run.following.metrics.bottleneck
    return {"finding": found.sentence.partition(":")[0], "sentence": found.sentence}


def _tiles(series: Series, newest: dict[str, float]) -> list[Answer]:
    useful = newest.get("preprocessor/useful_share")
    return [
        _tile("held-out success", series.of("success", "held-out"), "share", _first_value),
        _tile("training success", series.of("success", "training"), "share"),
        _tile("reward", series.of("reward", "reward"), "number"),
        _tile("lag, versions", series.of("lag", "mean"), "number", "mean"),
        _tile("generated tokens/s", series.of("throughput", "generated"), "count"),
        _tile("trained tokens/s", series.of("throughput", "trained"), "count"),
        {"name": "sampled tokens in the loss", "value": useful, "format": "share", "note": "since the start"},
        _tile("log-probability gap", series.of("gap", "mean"), "number", "mean, server to trainer"),
    ]


def _tile(name: str, points: Points, unit: str, note: str | Callable[[Points], str] = "") -> Answer:
    """Returns the last value of a series with a note, which begins with its version."""
    if not points:
        return {"name": name, "value": None, "format": unit, "note": ""}
    step, value = points[-1]
    words = note(points) if callable(note) else note
    return {
        "name": name,
        "value": value,
        "format": unit,
        "note": ", ".join(filter(None, [f"v{step}", words])),
    }


def _first_value(points: Points) -> str:
    step, value = points[0]
    return f"{value:.3f} at v{step}"


def _evaluations(state: RunState) -> list[Answer]:
    if not state.evaluations:
        return []
    return [_of_set(state, name) for name in rows_of(state.evaluations[-1])]


def _of_set(state: RunState, name: str) -> Answer:
    found = [(of, result) for result in state.evaluations if (of := on_set(result, name))]
    best = max(found, key=lambda pair: pair[0].success)
    last, last_result = found[-1]
    return {
        "set": name,
        "problems": last.problems,
        "attempts": last.attempts or None,
        "first": found[0][0].success,
        "best": best[0].success,
        "best_version": best[1].version,
        "last": last.success,
        "last_version": last_result.version,
        "failed": last.failed,
    }


def meaning(reason: str | None) -> str | None:
    """Returns the explanation of a drop reason."""
    return meaning_of(reason).full if reason else None
