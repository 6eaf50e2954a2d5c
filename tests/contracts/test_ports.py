"""A reserved port is there for who was told of it, and for nobody else."""

import socket
import struct
import sys

import pytest

from contracts.support.ports import ReservedPort
from contracts.weights import connected_store, listening_store
from tests.limits import HANG_S

IP_LOCAL_PORT_RANGE = 51  # <linux/in.h>


def bound(port: int, *options: int) -> socket.socket:
    other = socket.socket()
    for option in options:
        other.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        other.bind(("127.0.0.1", port))
    except OSError:
        other.close()
        raise
    return other


def test_nobody_takes_it_by_chance():
    with ReservedPort() as port, pytest.raises(OSError, match="in use"):
        bound(port.number)


@pytest.mark.skipif(sys.platform != "linux", reason="is kept on Linux alone")
def test_the_kernel_gives_it_to_no_connection():
    with socket.create_server(("127.0.0.1", 0)) as server, ReservedPort() as port, socket.socket() as client:
        only_this = struct.pack("I", port.number << 16 | port.number)
        try:
            client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only_this)
        except OSError:
            pytest.skip("Linux before 6.3 cannot be told which port to choose")
        with pytest.raises(OSError, match="Cannot assign requested address"):
            client.connect(server.getsockname())


def test_who_was_told_listens_there_again_and_again():
    with ReservedPort() as port:
        for value in ("first", "second"):
            store = listening_store("127.0.0.1", port.number, HANG_S)
            store.set("life", value)
            assert connected_store("127.0.0.1", port.number, HANG_S).get("life") == value.encode()
            with pytest.raises(OSError, match="in use"):
                bound(port.number, socket.SO_REUSEADDR)
            del store


def test_one_that_is_in_use_is_no_ones():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        ReservedPort(number=taken.getsockname()[1])
