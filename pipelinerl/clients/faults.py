"""The errors of a request to a server, by whether the server or the request caused them.

Raised by `completions`. `ServerPool` counts a `ServerFaultError` against the server; `attempt_requests`
decides whether another server is asked.
"""


class RequestError(Exception):
    """The request was not answered. The message is the contract's code, or says what happened."""

    server: str | None = None  # URL of the server that got the request


class ServerFaultError(RequestError):
    """The server caused the failure."""


class ServerUnavailableError(ServerFaultError):
    """The server did not take the request, or dropped it. The request is sent to another server."""


class ConnectionBrokenError(ServerUnavailableError):
    """The connection broke before the answer was complete."""


class ServerFailedError(ServerFaultError):
    """The server answered with an error of its own."""


class InvalidResponseError(ServerFaultError):
    """The server's answer breaks the contract."""


class RequestRefusedError(RequestError):
    """The server refused this request. Any other server might refuse it too."""
