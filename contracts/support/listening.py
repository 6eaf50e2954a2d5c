"""Opens the listening socket of a server of this project."""

import socket
import sys


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a listening TCP socket. Exits the process with a one-line message if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        sys.exit(f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}")
    return listener
