"""The head of an answer to a request for the rest of a file, from some byte on."""

from aiohttp import web


def begin(request: web.Request, body: bytes) -> tuple[web.StreamResponse, bytes]:
    """Returns the response to prepare, and what it has to send: the file, or its end that was requested."""
    start = request.http_range.start or 0
    response = web.StreamResponse(status=206 if start else 200)
    response.content_length = len(body) - start
    if start:
        response.headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
    return response, body[start:]
