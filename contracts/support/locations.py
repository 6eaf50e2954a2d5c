"""The plain form of the URLs of weight sources, which servers and the configuration of a run check alike.

A URL in any unusual form is refused, so that two URLs are the same location if their parts are equal.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

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
        path = parts.path.removeprefix("/")
        segments = path.removesuffix("/").split("/") if path else []
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
