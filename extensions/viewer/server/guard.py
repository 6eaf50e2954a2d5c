"""Admits only read requests, from this machine, that have the viewer's token.

The texts of a run are untrusted, so headers forbid the browser to run anything but the viewer's own files.
"""

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMES = ("127.0.0.1", "localhost", "[::1]")
TOKEN = "token"  # query parameter
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """An ASGI application around another one. `token`: the secret in the printed URL."""

    def __init__(self, app: ASGIApp, token: str, port: int):
        self._app = app
        self._token = token
        self._secret = hashlib.sha256(token.encode()).hexdigest()  # value of the cookie
        self._cookie = f"pipelinerl-view-{port}"  # browsers share cookies between ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        answer = self._refusal(scope) or self._app
        await answer(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """Returns the response to a refused request, or the one that sets the cookie; else None."""
        headers = Headers(scope=scope)
        if _hostname(headers.get("host", "")) not in NAMES:
            return _plain(f"this viewer answers to {', '.join(NAMES)} alone", 400)
        if scope["method"] != "GET":
            return _plain("the viewer only reads: GET", 405, {"allow": "GET"})
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == TOKEN]
        if given:
            return self._admit(scope, given[-1], [pair for pair in query if pair[0] != TOKEN])
        if not self._has_cookie(headers.get("cookie", "")):
            return _plain("open the viewer by the URL that it printed, which has its token", 401)
        return None

    def _admit(self, scope: Scope, token: str, rest: list[tuple[str, str]]) -> ASGIApp:
        """Returns, for a valid token, a redirection to the page without it, which sets the cookie."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return _plain("this is not the viewer's token: it printed another URL", 401)
        path = "/" + quote(scope["path"].lstrip("/"))  # "//name" would lead to another server
        answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, status_code=303)
        answer.set_cookie(self._cookie, self._secret, httponly=True, samesite="strict", path="/")
        return answer

    def _has_cookie(self, header: str) -> bool:
        try:
            cookie = SimpleCookie(header).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._secret.encode())


def _hostname(host: str) -> str:
    """Returns the name in a Host header, without the port, which may be a tunnel's."""
    name, separator, port = host.rpartition(":")
    return name if separator and port.isdigit() else host


def _plain(text: str, status: int, headers: dict[str, str] | None = None) -> PlainTextResponse:
    return PlainTextResponse(f"{text}\n", status, headers)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return send_with_headers
