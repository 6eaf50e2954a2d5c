"""Objectives inside others. Without torch, because the launcher asks too."""

from collections.abc import Iterator


def nested(objective: object) -> Iterator[object]:
    """Yields the objective and those inside it, which each has as its `policy`."""
    while objective is not None:
        yield objective
        objective = getattr(objective, "policy", None)
