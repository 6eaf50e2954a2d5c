"""Changes the responses of a server on their way: their content, their encoding, their transport."""

import json
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_adapters import serve

DATA = b"data: "


def changing_answers(**changes: object) -> None:
    """Wraps `Changed` with `changes` around the application of the next server that is started."""
    right = serve.create_app

    def create_app(*arguments, **options):
        app = right(*arguments, **options)
        app.add_middleware(Changed, **changes)
        return app

    serve.create_app = create_app


class Changed:
    """Middleware. A body of JSON is changed as a whole, a stream event by event, and lines one by one."""

    def __init__(
        self,
        app: ASGIApp,
        of_json: Callable[[object], object] = lambda value: value,
        of_event: Callable[[str], str] = lambda text: f"data: {text}\n\n",
        header: tuple[bytes, bytes] | None = None,
        piece: int | None = None,
        prefix: str = "",
    ):
        self.app = app
        self.of_json = of_json
        self.of_event = of_event
        self.header = header
        self.piece = piece
        self.prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.prefix and scope["path"].startswith(self.prefix):
            path = scope["path"].removeprefix(self.prefix)
            scope = scope | {"path": path, "raw_path": path.encode()}
        await self.app(scope, receive, Answer(self, send).send)


class Answer:
    """One response on its way."""

    def __init__(self, changed: Changed, send: Send):
        self.changed = changed
        self.onward = send
        self.start: Message = {}
        self.body = b""
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        self.body += message.get("body", b"")
        more = message.get("more_body", False)
        kind = dict(self.start["headers"]).get(b"content-type", b"")
        if kind.startswith(b"application/x-ndjson"):
            lines = self.body.split(b"\n")
            self.body = lines.pop()
            await self._pass_on(b"".join(self._line(line) for line in lines), more)
        elif kind.startswith(b"text/event-stream"):
            events = self.body.split(b"\n\n")
            self.body = events.pop()
            await self._pass_on(b"".join(self._event(event) for event in events), more)
        elif not more:
            await self._pass_on(self._whole(), more)

    def _event(self, event: bytes) -> bytes:
        text = event.removeprefix(DATA).decode()
        if text != "[DONE]":
            text = json.dumps(self.changed.of_json(json.loads(text)))
        return self.changed.of_event(text).encode()

    def _line(self, line: bytes) -> bytes:
        return json.dumps(self.changed.of_json(json.loads(line))).encode() + b"\n"

    def _whole(self) -> bytes:
        try:
            value = json.loads(self.body)
        except ValueError:
            return self.body
        return json.dumps(self.changed.of_json(value)).encode()

    async def _pass_on(self, body: bytes, more: bool) -> None:
        if not self.started:
            self.started = True
            headers = [pair for pair in self.start["headers"] if pair[0] != b"content-length"]
            if self.changed.header:
                headers.append(self.changed.header)
            await self.onward(self.start | {"headers": headers})
        size = self.changed.piece or max(1, len(body))
        for at in range(0, len(body), size):
            part = {"type": "http.response.body", "body": body[at : at + size], "more_body": True}
            await self.onward(part)
        if not more:
            await self.onward({"type": "http.response.body", "body": b"", "more_body": False})
