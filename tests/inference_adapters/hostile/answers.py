"""Finds faults in a server's responses to hostile requests."""

import json
from collections import Counter

import aiohttp

from contracts.errors import ErrorCode
from tests.inference_adapters.hostile.bodies import Hostile

CODES = {code.code: code for code in ErrorCode}
FIELDS = {"code", "message", "type", "param"}  # of an error
JSON = {"Content-Type": "application/json"}


async def fault_of(http: aiohttp.ClientSession, request: Hostile, answers: Counter[int]) -> str | None:
    """Returns the fault of the response, or None. Raises TimeoutError if the request takes long."""
    asked = http.post(request.path, data=request.body, headers=JSON, allow_redirects=False)
    try:
        async with asked as answer:
            body = await answer.text(errors="replace")
    except aiohttp.ClientConnectionError as error:
        if isinstance(error, TimeoutError):
            raise
        return f"no answer: {error!r}"
    status = answer.status
    answers[status] += 1
    shown = f"{status} {body[:300]!r}"
    if status < 400:
        return shown if "engine_failed" in body else None  # also in a stream
    try:
        code = json.loads(body)["error"]["code"]
        assert set(json.loads(body)) == {"error"} and set(json.loads(body)["error"]) == FIELDS
    except (ValueError, KeyError, TypeError, AssertionError):
        return f"{shown} is not the contract's error"
    if code not in CODES or CODES[code].status_at(request.path) != status:
        return f"{shown}: that is not the code's status"
    if status >= 500 and code not in ("overloaded", "rendezvous_timeout"):
        return shown
    return None
