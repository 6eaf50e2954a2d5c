"""Counts the requests for completions and scores by the status of their response, for `/metrics`."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_adapters.totals import Totals

CLOSED = "closed"  # the status of a request whose client disconnected before the response began
FAILED = "500"


class CountRequests:
    """Middleware that counts the requests for completions and scores, including refused ones."""

    def __init__(self, app: ASGIApp, totals: Totals):
        self.app = app
        self.totals = totals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_counted(scope):
            await self.app(scope, receive, send)
            return
        status: str | None = None

        async def receive_and_note() -> Message:
            nonlocal status
            message = await receive()
            if message["type"] == "http.disconnect":
                status = status or CLOSED
            return message

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = status or str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive_and_note, send_and_note)
        finally:  # no status means an unexpected error, whose response is sent outside of all middleware
            self.totals.requests[status or FAILED] += 1


def _is_counted(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    return scope["path"].startswith("/v1/") or scope["path"] == "/score"
