"""The HTTP server of the endpoint, in the actor's event loop."""

import logging
import secrets
from dataclasses import dataclass

from aiohttp import web

from extensions.agents.endpoint.answers import streamed, whole
from extensions.agents.endpoint.requests import RefusedError, read_request
from extensions.agents.endpoint.session import FORGOTTEN, Reply, Session

log = logging.getLogger(__name__)
KEY_BYTES = 32
LONGEST_BODY = 16 << 20  # bytes, after it is decompressed
CHAT = "chat/completions"
NO_ROUTE = "there is no such route; train through chat completions: POST .../chat/completions"
JSON = {"Content-Type": "application/json"}
STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
MODELS = {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "run"}]}


@dataclass(frozen=True)
class EndpointOptions:
    """host, port: where the server listens; port 0 = a free one.

    history: sampled = sampled tokens stay in the context; rendered = each prompt is rendered as a whole.
    train: all = all answers; path = those on the way to the last one.
    forced_calls: auto = a forced call is an offered one; refuse = it is refused.
    """

    host: str = "127.0.0.1"
    port: int = 0
    history: str = "sampled"
    train: str = "all"
    forced_calls: str = "auto"

    def __post_init__(self) -> None:
        for name, words in {
            "history": ("sampled", "rendered"),
            "train": ("all", "path"),
            "forced_calls": ("auto", "refuse"),
        }.items():
            if getattr(self, name) not in words:
                raise ValueError(f"domain.endpoint.{name}={getattr(self, name)} must be {' or '.join(words)}")


class Endpoint:
    """Answers the requests of sessions, each of which has a key. A key is in the path, or a header."""

    def __init__(self, options: EndpointOptions):
        self._options = options
        self._sessions: dict[str, Session] = {}
        self._told: set[str] = set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def open(self) -> None:
        """Listens. Raises OSError if the address cannot be used."""
        app = web.Application(client_max_size=LONGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # Without cancellation, answers that no client waits for would be sampled to their end.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._options.host, self._options.port, reuse_address=True)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    def key_of(self, session: Session) -> str:
        """Returns a new key of a session."""
        key = secrets.token_urlsafe(KEY_BYTES)
        self._sessions[key] = session
        return key

    async def end(self, key: str) -> None:
        """Ends a session. Its key is refused from now on."""
        if session := self._sessions.pop(key, None):
            await session.end()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            path = request.path.rstrip("/")
            session = self._session_of(request)
            if path.endswith("/models"):
                return web.json_response(MODELS)
            if not path.endswith(CHAT) or request.method != "POST":
                raise RefusedError(NO_ROUTE, code="not_found", status=404)
            with session.working():
                return await self._answered(request, session)
        except RefusedError as error:
            self._tell(error)
            return web.json_response(error.body, status=error.status)

    def _session_of(self, request: web.Request) -> Session:
        given = [request.headers.get(name, "") for name in ("Authorization", "X-Api-Key", "Api-Key")]
        keys = [each.removeprefix("Bearer ").strip() for each in given] + request.path.split("/")
        for key in keys:
            if key in self._sessions:
                return self._sessions[key]
        raise RefusedError(FORGOTTEN, code="forbidden", status=403)

    async def _answered(self, request: web.Request, session: Session) -> web.StreamResponse:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise RefusedError("the body is too large", code="too_large", status=413) from error
        except (web.RequestPayloadError, ValueError) as error:  # it says that it is compressed, and is not
            raise RefusedError(f"the body cannot be read: {error}", code="bad_request") from error
        asked = read_request(body, self._options.forced_calls == "refuse")
        reply = await session.reply(asked)
        response = web.StreamResponse(headers=STREAM if asked.streams else JSON)
        parts = list(_parts(reply))
        if not asked.streams:
            response.content_length = len(parts[0])
        await response.prepare(request)
        for part in parts[:-1]:
            await response.write(part)

        async def last_bytes() -> None:
            await response.write(parts[-1])
            await response.write_eof()
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has left")

        await session.deliver(reply, last_bytes)
        return response

    def _tell(self, error: RefusedError) -> None:
        """Logs the first refusal of each field."""
        if error.code == "unsupported_parameter" and str(error.param) not in self._told:
            self._told.add(str(error.param))
            log.warning("an agent's request was refused, and others will be: %s", error)


def _parts(reply: Reply) -> list[bytes]:
    asked = reply.request
    if asked.streams:
        return list(streamed(reply.answer, reply.message, asked.model, asked.shows_usage))
    return [whole(reply.answer, reply.message, asked.model)]
