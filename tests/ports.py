"""Ports for what a test starts."""

from contracts.support.ports import ReservedPort

_RESERVED: list[ReservedPort] = []


def free_port() -> int:
    """Nobody else's as long as the tests last."""
    _RESERVED.append(ReservedPort())
    return _RESERVED[-1].number
