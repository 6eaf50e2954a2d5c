"""Tells whether a listening socket of this machine belongs to our own user. It works on Linux only."""

import ipaddress
import os
import struct
from pathlib import Path

TABLES = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
LISTENING = "0A"  # <net/tcp_states.h>


def is_own_listener(address: str) -> bool:
    """Returns whether every socket that listens at `address` (`host:port`) belongs to our user.

    It returns False if no socket listens there.
    """
    host, _, port = address.rpartition(":")
    wanted = ipaddress.ip_address(host.strip("[]"))
    owners = {
        uid for found, uid in _listeners(int(port)) if found == wanted or found.is_unspecified
    }  # a socket at 0.0.0.0 or :: listens at every address
    return owners == {os.getuid()}


def _listeners(port: int) -> list[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Returns the address and the user of each socket that listens at `port`."""
    rows = [row.split() for table in TABLES if table.exists() for row in table.read_text().splitlines()[1:]]
    return [
        (_address(row[1].partition(":")[0]), int(row[7]))
        for row in rows
        if row[3] == LISTENING and int(row[1].partition(":")[2], 16) == port
    ]


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parses an address, which the kernel prints as 32-bit words in the machine's byte order."""
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
