"""Reserves a port for a process that will be started later."""

import socket
import sys


class ReservedPort:
    """A TCP port of `address` that is reserved until `release`. `number` 0 chooses a free port.

    The kernel does not assign the port to a process that binds port 0. A process that binds this port with
    SO_REUSEADDR, as servers do, can listen on it. On Linux, sockets share a port while at most one of them
    listens. On other systems they cannot, so there the port is chosen but not reserved.

    Raises OSError if a process listens on the port already, or the address is not one of this machine.
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
