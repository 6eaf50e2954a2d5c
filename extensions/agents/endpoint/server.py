"""The HTTP server of the endpoint, in the actor's event loop."""

import asyncio
import logging
import re
import resource
import secrets
from collections.abc import Iterable
from functools import partial

from aiohttp import web

from extensions.agents.endpoint.answers import streamed, whole
from extensions.agents.endpoint.requests import RefusedError, read_request
from extensions.agents.endpoint.session import Reply, Session
from extensions.agents.options import EndpointOptions
from pipelinerl.clients.completions import TOO_LONG
from pipelinerl.judging.worker_messages import printable

log = logging.getLogger(__name__)
KEY_BYTES = 32
MOST_CONNECTIONS = 4096
MOST_TOLD = 64  # fields whose refusal is logged
LONGEST_BODY = 4 << 20  # bytes, after it is decompressed; more than any context holds
AT_ONCE_BYTES = 1 << 16  # of a body that is read in the event loop
CHAT = "chat/completions"
NO_SESSION = "no session has this key; a key is valid until its attempt ends"
NO_ROUTE = "there is no such route; train through chat completions: POST .../chat/completions"
JSON = {"Content-Type": "application/json"}
STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
MODELS = {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "run"}]}


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
        self._limit_connections(self._runner.server)
        site = web.TCPSite(self._runner, self._options.host, self._options.port, reuse_address=True)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            where = f"domain.endpoint: {self._options.host}, port {self._options.port}"
            raise OSError(f"{where} cannot be listened at: {error}") from error
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

    async def end(self, keys: Iterable[str]) -> None:
        """Ends sessions. Their keys are refused from now on."""
        ended = [session for key in keys if (session := self._sessions.pop(key, None))]
        await asyncio.gather(*(session.end() for session in ended))

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
            if error.code == "unsupported_parameter":
                session.counts["unsupported"] += 1
                self._tell(error)
            return web.json_response(error.body, status=error.status)

    def _session_of(self, request: web.Request) -> Session:
        given = [request.headers.get(name, "") for name in ("Authorization", "X-Api-Key", "Api-Key")]
        keys = [re.sub("^bearer +", "", each.strip(), flags=re.IGNORECASE) for each in given]
        for key in [*keys, *request.path.split("/")]:
            if key in self._sessions:
                return self._sessions[key]
        raise RefusedError(NO_SESSION, code="forbidden", status=403)

    async def _answered(self, request: web.Request, session: Session) -> web.StreamResponse:
        session.check()
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            words = f"the body has more than {LONGEST_BODY} bytes"
            raise RefusedError(words, "messages", TOO_LONG) from error
        except (web.RequestPayloadError, ValueError) as error:  # it says that it is compressed, and is not
            raise RefusedError(f"the body cannot be read: {error}", code="bad_request") from error
        read = partial(read_request, body, self._options.forced_calls == "refuse")
        asked = await asyncio.to_thread(read) if len(body) > AT_ONCE_BYTES else read()
        reply = await session.reply(asked)
        response = web.StreamResponse(headers=STREAM if asked.streams else JSON)
        parts = _parts(reply)
        if not asked.streams:
            response.content_length = len(parts[0])
        await response.prepare(request)
        for part in parts[:-1]:
            await response.write(part)

        async def last_bytes() -> None:
            await response.write(parts[-1])
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has left")

        await session.deliver(reply, last_bytes)
        await response.write_eof()
        return response

    def _limit_connections(self, server: web.Server) -> None:
        """Closes connections beyond half of the files that this process may open: an agent may open many."""
        most = min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        accepted = server.connection_made

        def connection_made(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
            accepted(handler, transport)
            if len(server.connections) > most:
                transport.abort()

        server.connection_made = connection_made

    def _tell(self, error: RefusedError) -> None:
        """Logs the first refusal of each field."""
        name = printable(str(error.param))
        if name not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(name)
            log.warning("an agent's request was refused, and others will be: %s", printable(str(error)))


def _parts(reply: Reply) -> list[bytes]:
    asked = reply.request
    if asked.streams:
        return streamed(reply.answer, reply.message, asked.model, asked.shows_usage)
    return [whole(reply.answer, reply.message, asked.model)]
