"""Sends updates of a run as server-sent events, identified by offsets in the metrics files."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from urllib.parse import unquote_to_bytes

from fastapi.sse import ServerSentEvent

from extensions.viewer.answers.charts import mark_of_alarm, mark_of_resumption
from extensions.viewer.answers.overview import Answer, as_id, overview
from extensions.viewer.charts import points_of
from extensions.viewer.json_text import encode_json
from extensions.viewer.lines import MetricsLines
from extensions.viewer.runs.opened import OpenRun
from extensions.viewer.runs.run_metrics import alarms_of

EVERY_S = 2.0
PATIENCE = 5  # intervals to wait for the thread that follows the run
CHECKS = 10  # in each interval, for the end of the viewer
IDENTIFIER = re.compile(r"[^:,]+:\d{1,18}(,[^:,]+:\d{1,18})*")
OFTEN_CHANGED = ("updated_at", "stream_from")  # a change of only these is not sent


def offsets_of(identifier: str) -> dict[str, int]:
    """Returns the offsets in an event's identifier; none, i.e. all lines are new, if it is invalid."""
    if not IDENTIFIER.fullmatch(identifier):
        return {}
    pairs = (part.rpartition(":") for part in identifier.split(","))
    return {os.fsdecode(unquote_to_bytes(process)): int(offset) for process, _, offset in pairs}


async def live_events(
    run: OpenRun, offsets: dict[str, int], is_ending: Callable[[], bool]
) -> AsyncIterator[ServerSentEvent]:
    """Yields `points` and `run` events until the run has ended, and then `ended`.

    `is_ending`: returns whether the viewer is ending, which also ends the events.
    """
    lines = MetricsLines(run.run_dir)
    lines.seek(offsets)
    sent: Answer | None = None
    resumptions = len(run.following.state.resumptions)
    while not (is_ending() or run.following.is_closed):
        await asyncio.to_thread(run.following.asked)
        is_live = run.following.is_live  # before anything is read
        points, marks = await asyncio.to_thread(_new_points, lines)
        resumed = run.following.state.resumptions[resumptions:]
        resumptions += len(resumed)
        marks += map(mark_of_resumption, resumed)
        if points or marks:
            await _follow_up(run, lines.offsets, is_ending)
            yield _event("points", {"charts": points, "marks": marks}, as_id(lines.offsets))
        answer = await asyncio.to_thread(overview, run)
        news = {name: value for name, value in answer.items() if name not in OFTEN_CHANGED}
        if news != sent:
            sent = news
            yield _event("run", answer)
        if not is_live:
            yield _event("ended", {})
            return
        await _wait(is_ending)


async def _follow_up(run: OpenRun, offsets: dict[str, int], is_ending: Callable[[], bool]) -> None:
    """Waits until other answers have the data up to these offsets, because pages may request it."""
    for _ in range(PATIENCE):
        with run.lock:
            followed = run.following.metrics.offsets
        if all(followed.get(process, 0) >= offset for process, offset in offsets.items()):
            break
        await _wait(is_ending)


async def _wait(is_ending: Callable[[], bool]) -> None:
    for _ in range(CHECKS):
        if is_ending():
            break
        await asyncio.sleep(EVERY_S / CHECKS)


def _new_points(lines: MetricsLines) -> tuple[dict[str, dict[str, list[tuple[int, float]]]], list[Answer]]:
    """Returns new points by chart and series, and the marks of new alarms."""
    points: dict[str, dict[str, list[tuple[int, float]]]] = {}
    marks: list[Answer] = []
    for line in sorted(lines.read(), key=lambda line: line.time):
        for point in points_of(line):
            points.setdefault(point.chart, {}).setdefault(point.series, []).append((point.step, point.value))
        marks += map(mark_of_alarm, alarms_of(line))
    return points, marks


def _event(name: str, data: object, identifier: str | None = None) -> ServerSentEvent:
    return ServerSentEvent(raw_data=encode_json(data).decode(), event=name, id=identifier)
