"""Measures the resources of a server's processes, as reported by the operating system. G8 calls it.

These are the processes that listen at the server's address and their descendants. They can be inspected if
the server runs on this machine under the same user.
"""

import contextlib
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

ANY = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Footprint:
    """The sums over all processes of a server."""

    resident_bytes: int
    descriptors: int  # without client connections, whose duration clients decide
    threads: int
    processes: int  # including zombies


class Processes:
    """The processes of one server. Descendants are determined at each reading."""

    def __init__(self, root: psutil.Process, port: int):
        self.root = root
        self.port = port

    def footprint(self) -> Footprint:
        """Returns the processes' resources. Raises psutil.Error if the server's first process has ended."""
        family = [self.root, *self.root.children(recursive=True)]
        held = [found for process in family if (found := self._held(process))]
        return Footprint(
            resident_bytes=sum(resident for resident, _, _ in held),
            descriptors=sum(descriptors for _, descriptors, _ in held),
            threads=sum(threads for _, _, threads in held),
            processes=len(family),
        )

    def _held(self, process: psutil.Process) -> tuple[int, int, int] | None:
        """Returns resident bytes, descriptors and threads of a process, or None if it has ended."""
        with contextlib.suppress(psutil.Error), process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            clients = sum(
                connection.laddr.port == self.port
                for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_ESTABLISHED
            )
            return process.memory_info().rss, process.num_fds() - clients, process.num_threads()
        return None


def processes_of(url: str) -> Processes | None:
    """Returns the processes that serve `url`, or None if they cannot be inspected."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(parts.hostname, port)}
    except OSError:
        return None
    if not addresses <= _own_addresses():
        return None
    with contextlib.suppress(psutil.Error, OSError):  # a system may not reveal the listening process
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or connection.laddr.port != port or not connection.pid:
                continue
            if connection.laddr.ip in {*addresses, *ANY}:
                found = Processes(_first(psutil.Process(connection.pid), port), port)
                found.footprint()  # raises if the processes may not be inspected
                return found
    return None


def _own_addresses() -> set[str]:
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return own | {"127.0.0.1", "::1"}


def _first(process: psutil.Process, port: int) -> psutil.Process:
    """Returns the topmost ancestor with the listening socket, because a server may have forked workers."""
    parent = process.parent()
    with contextlib.suppress(psutil.Error):
        while parent and any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for connection in parent.net_connections("tcp")
        ):
            process = parent
            parent = process.parent()
    return process
