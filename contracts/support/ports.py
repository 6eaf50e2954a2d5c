"""Reserves a port before the process that will listen on it has started."""

import socket
import sys


class ReservedPort:
    """A TCP port of `address` that stays reserved until it is released; `number` 0 takes a free one.

    A process that asks the kernel for any free port gets another one. A process that binds this port with
    SO_REUSEADDR, as servers do, gets it. On Linux, sockets share a port while at most one of them listens. On
    other systems they do not, so there the port is chosen but not kept.

    Raises OSError if a process listens on the port already, or the address is not this machine's.
    """

    def __init__(self, address: str = "127.0.0.1", number: int = 0):
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((address, number))
        except OSError:
            self.release()
            raise
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Frees the port."""
        self._socket.close()

    def __enter__(self) -> "ReservedPort":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
