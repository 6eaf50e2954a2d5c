"""Addresses of this machine."""

import ipaddress

import psutil

LOOPBACK = "127.0.0.1"


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface with this address. Returns None if no interface has it."""
    for interface, entries in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == address for entry in entries):
            return str(interface)
    return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def in_url(address: str) -> str:
    """Returns the address as a URL's host: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address
