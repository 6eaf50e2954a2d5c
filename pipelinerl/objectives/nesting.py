"""Objectives inside others. Does not import torch, because the launcher uses it."""

from collections.abc import Iterator


def nested(objective: object) -> Iterator[object]:
    """Yields the objective and its inner ones, each the `policy` of the previous one."""
    while objective is not None:
        yield objective
        objective = getattr(objective, "policy", None)


def needs_whole_rollouts(objective: object) -> bool:
    """Returns True unless the objective and its inner ones say `whole_rollouts = False`."""
    return any(getattr(each, "whole_rollouts", True) for each in nested(objective))
