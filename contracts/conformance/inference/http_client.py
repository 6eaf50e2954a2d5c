"""An HTTP client of one server, which returns responses unchecked. Must not know guarantees."""

import json
from typing import Any

import aiohttp

from contracts.conformance.inference.event_stream import Event, read_events, read_lines
from contracts.conformance.verdicts import GuaranteeError

Answer = tuple[int, dict[str, Any]]  # HTTP status, decoded body


class HttpClient:
    """Sends requests to one server. token: the bearer token with which it was started."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None):
        self.http = http
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __str__(self) -> str:
        return self.url

    async def get(self, path: str) -> Answer:
        status, text = await self._ask("GET", path)
        return status, decoded(text)

    async def post(self, path: str, body: dict[str, Any]) -> Answer:
        status, text = await self._ask("POST", path, body)
        return status, decoded(text)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        asked = self.http.request(method, self.url + path, json=body, headers=self.headers)
        try:
            async with asked as answer:
                return answer.status, await answer.text()
        except TimeoutError as error:
            raise self.unanswered(method, path, body or {}) from error

    async def ask_events(self, path: str, body: dict[str, Any]) -> tuple[int, list[Event], str]:
        """Returns the status, the events and, unless the status is 200, the text of the response."""
        asked = self.http.post(self.url + path, json=body, headers=self.headers)
        try:
            async with asked as answer:
                if answer.status != 200:
                    return answer.status, [], await answer.text()
                return answer.status, await read_events(answer.content.iter_any()), ""
        except TimeoutError as error:
            raise self.unanswered("POST", path, body) from error

    async def ask_lines(self, path: str, body: dict[str, Any], lines: list[Event]) -> int:
        """Appends the lines of a response to `lines` as they are completed. Returns the status."""
        try:
            async with self.http.post(self.url + path, json=body, headers=self.headers) as answer:
                await read_lines(answer.content.iter_any(), lines)
                return answer.status
        except TimeoutError as error:
            raise self.unanswered("POST", path, body) from error

    async def body_of(self, path: str, body: dict[str, Any]) -> tuple[int, str, str]:
        """Returns the status, the content type and the body of a response."""
        try:
            async with self.http.post(self.url + path, json=body, headers=self.headers) as answer:
                return answer.status, answer.content_type, await answer.text()
        except TimeoutError as error:
            raise self.unanswered("POST", path, body) from error

    def unanswered(self, method: str, path: str, body: dict[str, Any]) -> GuaranteeError:
        """Returns the error for a request that timed out."""
        return GuaranteeError(
            f"{self.url}: no answer to {method} {path} within {self.http.timeout.total:g} s",
            "an answer",
            describe_request(path, body),
        )


def decoded(text: str) -> dict[str, Any]:
    """Parses a JSON object. Any other text is returned within an object."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"not a JSON object": text[:300]}


def describe_request(path: str, body: dict[str, Any]) -> str:
    """Returns a request as one line, truncated to about 600 characters."""
    text = json.dumps(body)
    return f"POST {path} {text if len(text) < 600 else text[:600] + ' ...'}"
