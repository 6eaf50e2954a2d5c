"""Plain HTTP requests to an origin or to a relay."""

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.limits import HANG_S


@dataclass(frozen=True)
class Answer:
    """An HTTP response. Its headers have names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(url: str, path: str, headers=None, method: str = "GET") -> Answer:
    """Returns the response to one request. The path is sent as it is."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=HANG_S)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()
