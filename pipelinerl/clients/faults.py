"""The errors of a request to a server, caused by the server or by the request.

`ServerPool` counts a `ServerFaultError` against the server; `attempt_requests` decides about a retry.
"""


class RequestError(Exception):
    """The request has no answer. The message is the contract's error code, or one word for the reason."""

    server: str | None = None  # URL of the server that got the request


class ServerFaultError(RequestError):
    """The server caused the failure."""


class ServerUnavailableError(ServerFaultError):
    """The server did not accept the request, or dropped it. The request is sent to another server."""


class ConnectionBrokenError(ServerUnavailableError):
    """The connection broke before the answer was complete."""


class ServerFailedError(ServerFaultError):
    """The server answered with an internal error."""


class InvalidResponseError(ServerFaultError):
    """The server's answer violates the contract."""


class RequestRefusedError(RequestError):
    """The server refused this request, which other servers may refuse too."""
