"""The connections by which keepers notice the launcher's end.

If a node has lost the head, Ray does not tell its keepers of the launcher's end. The operating system closes
these connections when the launcher ends for any reason. Nothing is sent on them.
"""

import contextlib
import socket
import threading

RETRY_S = 1.0  # after a connection that could not be accepted


class Lifeline:
    """A listener on a free port of `address`. It keeps each connection open until the other end closes it."""

    def __init__(self, address: str):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, 0), family=family, backlog=1024)
        self._held: list[socket.socket] = []
        self._closed = threading.Event()
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the thread's wait in accept
        self._listening.close()
        for connection in self._held:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if self._closed.wait(RETRY_S):
                    return
                continue
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._held = [held for held in self._held if not _has_ended(held)] + [connection]


def _has_ended(connection: socket.socket) -> bool:
    """Returns whether the keeper at the other end is gone. Closes the connection in that case."""
    try:
        connection.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True
