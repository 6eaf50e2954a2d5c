"""Parses the URLs of weight sources, for servers and for the configuration of a run.

URLs in an unusual form are refused, so that two URLs name the same location if their parts are equal.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
PORTS = {"http": 80, "https": 443}
ODD = ("?", "#", "%", "\\", "@")  # refused characters


@dataclass(frozen=True)
class Location:
    """The parsed URL of a source, for comparison."""

    scheme: str  # http, https or file
    host: str  # empty for a file
    port: int  # 0 for a file
    path: tuple[str, ...]  # segments

    @classmethod
    def of(cls, url: str) -> Self:
        """Parses a URL. Raises ValueError with a one-line message if its form is unusual."""
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
        """Returns True if `other` is this location or below it."""
        same = (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
        return same and other.path[: len(self.path)] == self.path


def plain_host(host: str) -> str:
    """Returns the normalised host, for comparison. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower()
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
