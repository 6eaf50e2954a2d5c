"""The allow-list of a server's weight sources.

Without it, a client could make the server send requests to hosts that only the server can reach. URLs are
compared by their parts; `locations` refuses URLs in an unusual form.
"""

import ipaddress
from collections.abc import Sequence

from contracts.errors import ContractError, ErrorCode
from contracts.support.locations import Location, plain_host
from inference_adapters.channel import Caller


def is_loopback(host: str) -> bool:
    """Returns True if a host is a loopback address or `localhost`, without a DNS query."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local(caller: Caller) -> bool:
    """Returns True if the caller is on the server's machine."""
    host = plain_host(caller.host)
    return is_loopback(host) or host == plain_host(caller.reached)


class SourceList:
    """The allowed sources: all URLs below `prefixes`.

    By default they are loopback addresses and the caller's host, and directories if the caller is on the
    server's machine.
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
            return is_local(caller)
        return is_loopback(location.host) or location.host == plain_host(caller.host)
