"""Objectives inside others. Does not import torch, because the launcher uses it."""

from collections.abc import Iterator


def nested(objective: object) -> Iterator[object]:
    """Yields the objective and its inner ones, each the `policy` of the previous one."""
    while objective is not None:
        yield objective
        objective = getattr(objective, "policy", None)
