"""Ports that are chosen before who will listen there is started, and that nobody else gets meanwhile."""

import socket
import sys


class ReservedPort:
    """A TCP port of `address`, kept until it is released; `number` 0 takes a free one.

    Whoever asks the kernel for any port of the address gets another, and only who binds it with SO_REUSEADDR,
    as servers do, gets this one: on Linux, such sockets share a port as long as at most one of them listens.
    On other systems they do not, and a port is chosen there without being kept.

    Raises OSError where somebody listens at the port, or the address is not this machine's.
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
        self._socket.close()

    def __enter__(self) -> "ReservedPort":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
