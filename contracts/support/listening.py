"""Opens the socket at which a server of this project listens."""

import socket
import sys


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a listening TCP socket. Ends the process with one line if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        sys.exit(f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}")
    return listener
