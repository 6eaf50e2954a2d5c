"""The viewer's application: read-only routes, whose answers `extensions.viewer.answers` makes."""

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.responses import FileResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from starlette.background import BackgroundTask
from starlette.responses import Response

from extensions.viewer.answers import charts, files, groups, overview, reader, rollouts, servers, timeline
from extensions.viewer.answers.listing import Listing, comparison
from extensions.viewer.index.filters import Filters, Number, Stream, Whole
from extensions.viewer.runs.directory import Runs
from extensions.viewer.runs.opened import OpenRun
from extensions.viewer.server.errors import Json, add_errors
from extensions.viewer.server.live import live_events, offsets_of
from extensions.viewer.trace import write_trace_of

STATIC = Path(__file__).parents[1] / "static"
top = APIRouter()
of_run = APIRouter(prefix="/api/runs/{name}")


class RolloutQuery(Filters):
    """The query of a list of rollouts: filters and a page cursor."""

    after: str | None = None


def make_app(runs: Runs) -> FastAPI:
    """Returns the application for these runs, without the guard."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.runs = runs
    app.state.listing = Listing(runs)
    app.include_router(top)
    app.include_router(of_run)
    app.mount("/static", StaticFiles(directory=STATIC))
    add_errors(app)
    return app


def opened(name: str, request: Request) -> OpenRun:
    return request.app.state.runs.get(name)


Run = Annotated[OpenRun, Depends(opened)]


@top.get("/")
def page() -> FileResponse:
    return FileResponse(STATIC / "index.html")


@top.get("/api/runs")
def get_runs(request: Request) -> Response:
    return Json(request.app.state.listing.answer())


@top.get("/api/compare")
def compare(
    request: Request, names: Annotated[list[str], Query(alias="runs", min_length=2, max_length=2)]
) -> Response:
    return Json(comparison(*map(request.app.state.runs.get, names)))


@of_run.get("")
def get_run(run: Run) -> Response:
    return Json(overview.overview(run))


@of_run.get("/charts")
def get_charts(run: Run) -> Response:
    return Json(charts.charts(run))


@of_run.get("/stream", response_class=EventSourceResponse)
async def stream(
    request: Request,
    run: Run,
    since: Annotated[str, Query(alias="from")] = "",
    last_event_id: Annotated[str, Header()] = "",
) -> AsyncIterator[ServerSentEvent]:
    async for event in live_events(
        run, offsets_of(last_event_id or since), lambda: request.app.state.runs.is_closing
    ):
        yield event


@of_run.get("/timeline")
def get_timeline(run: Run, began: Number | None = None, ended: Number | None = None) -> Response:
    return Json(timeline.timeline(run, began, ended))


@of_run.get("/servers")
def get_servers(run: Run) -> Response:
    return Json(servers.servers(run))


@of_run.get("/rollouts")
def get_rollouts(run: Run, query: Annotated[RolloutQuery, Query()]) -> Response:
    return Json(rollouts.rollouts(run, query, query.after))


@of_run.get("/rollouts/count")
def count_rollouts(run: Run, since: Whole, stream: Stream = "train") -> Response:
    return Json(rollouts.newer(run, stream == "held-out", since))


@of_run.get("/rollouts/{stream}/{offset}")
def get_rollout(
    run: Run,
    stream: Stream,
    offset: Whole,
    turn: Annotated[Whole | None, Query(ge=0)] = None,
    begin: Annotated[Whole, Query(alias="from", ge=0)] = 0,
) -> Response:
    return Json(reader.rollout(run, stream, offset, turn, begin))


@of_run.get("/groups/{number}")
def get_group(run: Run, number: Whole) -> Response:
    return Json(groups.group(run, number))


@of_run.get("/groups/{number}/story")
def get_story(run: Run, number: Whole) -> Response:
    return Json(groups.story(run, number))


@of_run.get("/accounting")
def get_accounting(run: Run) -> Response:
    return Json(groups.accounting(run))


@of_run.get("/files")
def get_files(run: Run) -> Response:
    return Json(files.files(run))


@of_run.get("/files/{file:path}")
def get_file(run: Run, file: str) -> Response:
    return Json(files.file(run, file))


@of_run.get("/trace.json.gz")
def get_trace(run: Run, first: Whole | None = None, last: Whole | None = None) -> Response:
    handle, name = tempfile.mkstemp(suffix=".json.gz")
    os.close(handle)
    out = Path(name)
    try:
        write_trace_of(run.streams, run.run_dir, out, first, last)
    except BaseException:
        out.unlink()
        raise
    return FileResponse(out, filename=f"{run.name}-trace.json.gz", background=BackgroundTask(out.unlink))
