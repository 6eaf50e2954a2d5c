"""Decides from which sources a server may fetch weights: its allow-list.

Without one, anybody who reaches the server could make it send requests to hosts that only it can reach.
URLs are compared by their parts, and a URL in any unusual form is refused.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from contracts.errors import ContractError, ErrorCode

AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
PORTS = {"http": 80, "https": 443}
ODD = ("?", "#", "%", "\\", "@")  # characters that no source needs


@dataclass(frozen=True)
class Location:
    """The parts of a URL by which sources are compared."""

    scheme: str  # http, https or file
    host: str  # empty for a file
    port: int  # 0 for a file
    path: tuple[str, ...]  # the segments

    @classmethod
    def of(cls, url: str) -> Self:
        """Returns the parts of a URL. Raises ValueError with one line if it is not in the plain form."""
        if found := next((odd for odd in ODD if odd in url), None):
            raise ValueError(f"{url}: a source has no {found}")
        parts = urlsplit(url)
        segments = parts.path.strip("/").split("/") if parts.path.strip("/") else []
        if any(segment in ("", ".", "..") for segment in segments):
            raise ValueError(f"{url}: the path of a source has no empty segment, . or ..")
        if parts.scheme == "file":
            if parts.netloc or not parts.path.startswith("/"):
                raise ValueError(f"{url}: a directory is file:///path")
            return cls("file", "", 0, tuple(segments))
        if parts.scheme not in PORTS or not AUTHORITY.fullmatch(parts.netloc) or not parts.hostname:
            raise ValueError(f"{url}: a source is http://host:port/path, https:// or file:///path")
        port = PORTS[parts.scheme] if parts.port is None else parts.port
        return cls(parts.scheme, plain_host(parts.hostname), port, tuple(segments))

    def contains(self, other: "Location") -> bool:
        """Returns whether `other` is this location, or lies below it."""
        same = (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
        return same and other.path[: len(self.path)] == self.path


def plain_host(host: str) -> str:
    """Returns a host in the one form that is compared: an IPv4 address is never written as IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower()
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(host: str) -> bool:
    """Returns whether a plain host is this machine, whatever a name server says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Caller:
    """Who sent a request: the address that it came from, and the one at which it reached the server."""

    host: str
    reached: str

    @property
    def is_local(self) -> bool:
        """Whether the caller is on the server's own machine."""
        host = plain_host(self.host)
        return is_loopback(host) or host == plain_host(self.reached)


LOCAL = Caller("127.0.0.1", "127.0.0.1")


class SourceList:
    """The sources that a server accepts: everything below some URLs.

    Without URLs they are loopback addresses and the caller's own host, and directories if the caller is on
    the server's machine.
    """

    def __init__(self, prefixes: Sequence[Location] | None = None):
        self._prefixes = prefixes

    def check(self, url: str, kind: str, caller: Caller) -> None:
        """Raises ContractError (`source_refused`) unless a channel of this kind may use the source."""
        try:
            location = Location.of(url)
        except ValueError as error:
            raise ContractError(ErrorCode.SOURCE_REFUSED, str(error), "sources") from None
        if (location.scheme == "file") != (kind == "shared"):
            why = "a shared store is file:///path, and a relay is http:// or https://"
            raise ContractError(ErrorCode.SOURCE_REFUSED, f"{url}: {why}", "sources")
        if not self._accepts(location, caller):
            why = "it is not among the sources that this server accepts (--weight-sources)"
            raise ContractError(ErrorCode.SOURCE_REFUSED, f"{url}: {why}", "sources")

    def _accepts(self, location: Location, caller: Caller) -> bool:
        if self._prefixes is not None:
            return any(prefix.contains(location) for prefix in self._prefixes)
        if location.scheme == "file":
            return caller.is_local
        return is_loopback(location.host) or location.host == plain_host(caller.host)
