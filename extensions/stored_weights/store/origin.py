"""Serves a store over HTTP, to relays and to servers.

    python -m extensions.stored_weights.store.origin STORE --host 127.0.0.1 --port 8100

It serves only the objects and the signed manifests of the directory. It needs no token, so protect it by the
network or by a proxy. It ends on SIGTERM.
"""

import contextlib
import os
import re
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import NotModifiedResponse, PathLike, StaticFiles
from starlette.types import Scope

from contracts.support.addresses import in_url
from contracts.support.command_line import command_parser
from contracts.support.listening import listening_socket

OBJECT = re.compile(r"objects/[0-9a-f]{64}")
MANIFEST = re.compile(r"runs/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[0-9]{1,16}\.json")
LATEST = re.compile(r"runs/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/latest\.json")
CACHE_CONTROL = {
    OBJECT: "public, max-age=31536000, immutable",
    MANIFEST: "public, max-age=31536000, immutable",
    LATEST: "no-cache",  # caches must revalidate it before each use
}
CHUNK_BYTES = 2**20
SHUTDOWN_S = 1  # grace period of open transfers, which servers resume from other sources or later


class _File(FileResponse):
    chunk_size = CHUNK_BYTES


class StoreFiles(StaticFiles):
    """The public files of a store. The response for all others, including links, is 404."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        directory = os.path.realpath(str(self.directory))
        plain = os.path.join(directory, path)
        if _cache_control(path) is None or os.path.realpath(plain) != plain:
            return "", None
        return super().lookup_path(path)

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        headers = {"Cache-Control": _cache_control(self.get_path(scope)) or "no-store"}
        response = _File(
            full_path, status_code, headers, media_type="application/octet-stream", stat_result=stat_result
        )
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


def _cache_control(path: str) -> str | None:
    """Returns the Cache-Control of a file, or None if it is not served."""
    return next((value for pattern, value in CACHE_CONTROL.items() if pattern.fullmatch(path)), None)


def create_app(store: Path) -> Starlette:
    """Returns the app that serves a store."""
    files = Mount("/", StoreFiles(directory=store, check_dir=False))
    return Starlette(routes=[files], exception_handlers={HTTPException: _refuse})


async def _refuse(request: Request, error: Exception) -> Response:
    """Returns an error response that must not be cached, because the file may be added later."""
    assert isinstance(error, HTTPException)
    headers = {"Cache-Control": "no-store", **(error.headers or {})}
    return PlainTextResponse(error.detail, error.status_code, headers)


def main() -> None:
    """Serves the store that the command line names. Exits with a one-line message if that fails."""
    parser = command_parser("extensions.stored_weights.store.origin", __doc__)
    parser.add_argument("store", type=Path, help="the directory of the store")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100, help="0 takes a free one")
    args = parser.parse_args()
    if not args.store.is_dir():
        sys.exit(f"cannot serve {args.store}: it is no directory")
    listener = listening_socket(args.host, args.port)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(args.store),
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_S,
            log_level="error",
        )
    )
    print(f"listening at http://{in_url(args.host)}:{listener.getsockname()[1]}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
