"""Ports for processes that a test starts."""

from contracts.support.ports import ReservedPort

_RESERVED: list[ReservedPort] = []


def free_port() -> int:
    """Returns a port that no other process gets while the tests run."""
    _RESERVED.append(ReservedPort())
    return _RESERVED[-1].number
