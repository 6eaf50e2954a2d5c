"""The ways in which a request to a server fails, by who is to blame.

Raised by `completions`. `ServerPool` counts a `ServerFaultError` against the server; `attempt_requests`
decides whether another server is asked.
"""


class RequestError(Exception):
    """The request was not answered. The message is the contract's code, or says what happened."""

    server: str | None = None  # the one that it was sent to


class ServerFaultError(RequestError):
    """The server is to blame."""


class ServerUnavailableError(ServerFaultError):
    """The server did not take the request, or let go of it. Another server is asked, at no cost."""


class ConnectionBrokenError(ServerUnavailableError):
    """The connection broke before the answer was complete."""


class ServerFailedError(ServerFaultError):
    """The server answered with an error of its own."""


class InvalidResponseError(ServerFaultError):
    """The server's answer breaks the contract."""


class RequestRefusedError(RequestError):
    """The server refused this request, as any other server may."""
