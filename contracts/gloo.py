"""Aborts a gloo rendezvous or broadcast in which another thread is blocked.

`abort` and `shutdown` of torch's ProcessGroupGloo leave a broadcast blocked until its timeout. Shutting
down its connections unblocks it, on this rank and on every peer.
"""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OPEN_FILES = Path("/dev/fd")  # on a system without it, nothing is aborted before its timeout
NO_TIMEOUT = bytes(struct.calcsize("ll"))


class OpenedSockets:
    """The sockets that this process opens between the creation of this object and its `close`."""

    def __init__(self) -> None:
        self._before = {inode for _, inode in _sockets()}
        self._opened: set[int] | None = None

    def close(self) -> None:
        """Stops recording: sockets that are opened later belong to other groups."""
        self._opened = {inode for _, inode in _sockets()} - self._before

    def shut_down(self, store_port: int) -> None:
        """Shuts down gloo's sockets, and those of the rendezvous store that listens at `store_port`.

        Before `close`, this includes the sockets of a gloo group that another thread is forming.
        """
        for file, inode in _sockets():
            if inode not in self._before and (self._opened is None or inode in self._opened):
                with suppress(OSError), _duplicate(file, inode) as opened:
                    if _is_connection(opened) and _is_concerned(opened, store_port):
                        opened.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[tuple[int, int]]:
    if not OPEN_FILES.is_dir():
        return
    for name in os.listdir(OPEN_FILES):
        with suppress(OSError):  # the socket was closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                yield int(name), status.st_ino


@contextmanager
def _duplicate(file: int, inode: int) -> Iterator[socket.socket]:
    """Yields a duplicate of the socket. Raises OSError if the descriptor now belongs to another socket."""
    with socket.socket(fileno=os.dup(file)) as opened:
        if os.fstat(opened.fileno()).st_ino != inode:
            raise OSError("the socket was closed")
        yield opened


def _is_connection(opened: socket.socket) -> bool:
    """Returns True for a network connection, and False for a listening socket.

    Shutting down the store's listening socket would make the store's thread spin.
    """
    is_network = opened.family in (socket.AF_INET, socket.AF_INET6)
    return is_network and not opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _is_concerned(opened: socket.socket, store_port: int) -> bool:
    return _is_of_gloo(opened) or opened.getsockname()[1] == store_port


def _is_of_gloo(opened: socket.socket) -> bool:
    """Returns True if the socket has a send timeout. gloo sets one; Python's libraries do not."""
    timeout = opened.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, len(NO_TIMEOUT))
    return timeout != NO_TIMEOUT
