"""The charts of a run, with marks at resumptions and alarms."""

from contracts.records import Resumed
from extensions.viewer.answers.overview import Answer
from extensions.viewer.runs.opened import OpenRun
from extensions.viewer.runs.run_metrics import Alarm
from pipelinerl.health.rules import Alarm as Sign


def charts(run: OpenRun) -> Answer:
    """Returns all charts with their points and marks, and the lags of the last steps."""
    with run.lock:
        state = run.following.state
        metrics = run.following.metrics
        return {
            "charts": metrics.series.answer(),
            "marks": [
                *map(mark_of_resumption, state.resumptions),
                *map(mark_of_alarm, metrics.alarms),
            ],
            "lag_histogram": [
                {"version": closed.version, "lags": sorted(closed.lag_histogram.items())}
                for closed in state.steps
            ],
        }


def mark_of_resumption(resumed: Resumed) -> Answer:
    return {
        "version": resumed.version,
        "kind": "resumed",
        "text": f"resumed from version {resumed.version}",
    }


def mark_of_alarm(alarm: Alarm) -> Answer:
    return {"version": alarm.step, "kind": "alarm", "text": f"step {alarm.step}: {_sentence(alarm.name)}"}


def _sentence(name: str) -> str:
    try:
        return Sign(name).sentence
    except ValueError:
        return name
