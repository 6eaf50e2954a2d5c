"""The viewer's application: the routes, which only read. What they answer is in `pipelinerl.view.answers`."""

import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import Response

from contracts.support.messages import one_line
from pipelinerl.config import DamagedConfigError
from pipelinerl.streams import StreamError
from pipelinerl.streams.run_directory import InvalidInputError
from pipelinerl.view.answers import charts, files, groups, overview, reader, rollouts, servers, timeline
from pipelinerl.view.answers.listing import Listing, comparison
from pipelinerl.view.index.filters import Filters, NoSuchCursorError, Number, Stream, Whole
from pipelinerl.view.json_text import encode_json
from pipelinerl.view.runs.directory import NoSuchRunError, Runs
from pipelinerl.view.runs.opened import OpenRun
from pipelinerl.view.server.live import live_events, offsets_of

STATIC = Path(__file__).parents[1] / "static"
NOT_THERE = (
    NoSuchRunError,
    groups.NoSuchGroupError,
    reader.NoSuchRolloutError,
    files.NoSuchFileError,
)


class Json(Response):
    """A JSON response, in which a number that is not finite is null."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return encode_json(content)


class RolloutQuery(Filters):
    """The query of a list of rollouts: filters, and the cursor of a page."""

    after: str | None = None


def make_app(runs: Runs) -> FastAPI:
    """Returns the application for these runs, without its guard."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    listing = Listing(runs)

    def opened(name: str) -> OpenRun:
        return runs.get(name)

    Run = Annotated[OpenRun, Depends(opened)]

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/api/runs")
    def get_runs() -> Response:
        return Json(listing.answer())

    @app.get("/api/compare")
    def compare(runs_: Annotated[list[str], Query(alias="runs", min_length=2, max_length=2)]) -> Response:
        return Json(comparison(runs.get(runs_[0]), runs.get(runs_[1])))

    @app.get("/api/runs/{name}")
    def get_run(run: Run) -> Response:
        return Json(overview.overview(run))

    @app.get("/api/runs/{name}/charts")
    def get_charts(run: Run) -> Response:
        return Json(charts.charts(run))

    @app.get("/api/runs/{name}/stream", response_class=EventSourceResponse)
    async def stream(
        run: Run,
        since: Annotated[str, Query(alias="from")] = "",
        last_event_id: Annotated[str, Header()] = "",
    ) -> AsyncIterator[ServerSentEvent]:
        async for event in live_events(run, offsets_of(last_event_id or since), lambda: runs.is_closing):
            yield event

    @app.get("/api/runs/{name}/timeline")
    def get_timeline(run: Run, began: Number | None = None, ended: Number | None = None) -> Response:
        return Json(timeline.timeline(run, began, ended))

    @app.get("/api/runs/{name}/servers")
    def get_servers(run: Run) -> Response:
        return Json(servers.servers(run))

    @app.get("/api/runs/{name}/rollouts")
    def get_rollouts(run: Run, query: Annotated[RolloutQuery, Query()]) -> Response:
        return Json(rollouts.rollouts(run, query, query.after))

    @app.get("/api/runs/{name}/rollouts/count")
    def count_rollouts(run: Run, since: Whole, stream: Stream = "train") -> Response:
        return Json(rollouts.newer(run, stream == "held-out", since))

    @app.get("/api/runs/{name}/rollouts/{stream}/{offset}")
    def get_rollout(
        run: Run,
        stream: Stream,
        offset: Whole,
        turn: Annotated[Whole | None, Query(ge=0)] = None,
        begin: Annotated[Whole, Query(alias="from", ge=0)] = 0,
    ) -> Response:
        return Json(reader.rollout(run, stream, offset, turn, begin))

    @app.get("/api/runs/{name}/groups/{number}")
    def get_group(run: Run, number: Whole) -> Response:
        return Json(groups.group(run, number))

    @app.get("/api/runs/{name}/groups/{number}/story")
    def get_story(run: Run, number: Whole) -> Response:
        return Json(groups.story(run, number))

    @app.get("/api/runs/{name}/accounting")
    def get_accounting(run: Run) -> Response:
        return Json(groups.accounting(run))

    @app.get("/api/runs/{name}/files")
    def get_files(run: Run) -> Response:
        return Json(files.files(run))

    @app.get("/api/runs/{name}/files/{file:path}")
    def get_file(run: Run, file: str) -> Response:
        return Json(files.file(run, file))

    @app.get("/api/runs/{name}/trace.json.gz")
    def get_trace(run: Run, first: Whole | None = None, last: Whole | None = None) -> Response:
        from pipelinerl.view.trace import write_trace_of  # brings the client of Redis, which is large

        handle, name = tempfile.mkstemp(suffix=".json.gz")
        os.close(handle)
        out = Path(name)
        try:
            write_trace_of(run.streams, run.run_dir, out, first, last)
        except BaseException:
            out.unlink()
            raise
        return FileResponse(out, filename=f"{run.name}-trace.json.gz", background=BackgroundTask(out.unlink))

    app.mount("/static", StaticFiles(directory=STATIC))
    _add_errors(app)
    return app


def _add_errors(app: FastAPI) -> None:
    def answer(status: int) -> Callable[[Request, Exception], Response]:
        return lambda _, error: Json({"error": one_line(error)}, status)

    def refuse(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"][1:]))
        return Json({"error": one_line(f"{name}: {first['msg']}")}, 400)

    def pass_on(_: Request, error: HTTPException) -> Response:
        return Json({"error": error.detail}, error.status_code)

    for kind in NOT_THERE:
        app.add_exception_handler(kind, answer(404))
    app.add_exception_handler(Exception, answer(500))
    app.add_exception_handler(NoSuchCursorError, answer(400))
    app.add_exception_handler(InvalidInputError, answer(404))
    for kind in (StreamError, DamagedConfigError, OSError, sqlite3.Error):
        app.add_exception_handler(kind, answer(503))
    app.add_exception_handler(RequestValidationError, refuse)
    app.add_exception_handler(HTTPException, pass_on)
