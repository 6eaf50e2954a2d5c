"""Addresses of this machine."""

import ipaddress
import socket

import psutil

LOOPBACK = "127.0.0.1"


def own_address(towards: str) -> str:
    """Returns the address of this machine on its route to `towards`. Raises OSError if there is none."""
    found = socket.getaddrinfo(towards, 1, type=socket.SOCK_DGRAM)
    family, *_, there = min(found, key=lambda entry: entry[0] != socket.AF_INET)  # IPv4, if it has both
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect(there)
        return probe.getsockname()[0]


def interface_of(address: str) -> str | None:
    """Returns the network interface that has the address, or None if there is none."""
    for interface, entries in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == address for entry in entries):
            return interface
    return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
