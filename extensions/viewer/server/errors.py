"""Converts errors into JSON responses with a status."""

import sqlite3
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from contracts.support.messages import one_line
from extensions.viewer.answers.files import NoSuchFileError
from extensions.viewer.answers.groups import NoSuchGroupError
from extensions.viewer.answers.reader import NoSuchRolloutError
from extensions.viewer.index.filters import NoSuchCursorError
from extensions.viewer.json_text import encode_json
from extensions.viewer.runs.directory import NoSuchRunError
from pipelinerl.config import DamagedConfigError
from pipelinerl.streams import StreamError
from pipelinerl.streams.run_directory import InvalidInputError

STATUSES = {
    NoSuchCursorError: 400,
    NoSuchFileError: 404,
    NoSuchGroupError: 404,
    NoSuchRolloutError: 404,
    NoSuchRunError: 404,
    InvalidInputError: 404,
    DamagedConfigError: 503,
    StreamError: 503,
    OSError: 503,
    sqlite3.Error: 503,
    Exception: 500,
}


class Json(Response):
    """A JSON response with null for numbers that are not finite."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return encode_json(content)


def add_errors(app: FastAPI) -> None:
    """Adds handlers for the errors of STATUSES, and for invalid requests."""
    for kind, status in STATUSES.items():
        app.add_exception_handler(kind, _answer(status))
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_exception_handler(HTTPException, _pass_on)


def _answer(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: Json({"error": one_line(error)}, status)


def _refuse(_: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"][1:]))
    return Json({"error": one_line(f"{name}: {first['msg']}")}, 400)


def _pass_on(_: Request, error: HTTPException) -> Response:
    return Json({"error": error.detail}, error.status_code)
