"""Finds out which parts that a configuration names are the user's: those whose classes do not ship."""

from collections.abc import Mapping

from pipelinerl.config import Component, RunConfig
from pipelinerl.errors.part_faults import SHIPPED

SINGLE = ("domain", "objective", "advantage", "normalisation", "packing", "health", "trainer", "sampler")
LISTS = ("regularisers", "filters", "rewards")
ANY = "a part that can be made and called"  # what is expected of each


def has_own(config: RunConfig) -> bool:
    """Returns whether the configuration names any part of the user's."""
    return is_own([getattr(config, name) for name in (*SINGLE, *LISTS)]) or is_own(config.judging.verifiers)


def is_own(part: object) -> bool:
    """Returns whether a class that does not ship is named in it, by itself or inside a part that ships."""
    match part:
        case Component():
            return is_own(part.model_dump(by_alias=True))
        case Mapping():
            target = part.get("_target_")
            is_outside = isinstance(target, str) and target.partition(".")[0] not in SHIPPED
            return is_outside or any(map(is_own, part.values()))
        case list() | tuple():
            return any(map(is_own, part))
    return False


def own_in(part: object) -> object:
    """Returns the part, or what is the user's inside one that ships."""
    if _is_users(part):
        return part
    inside = vars(part).values() if hasattr(part, "__dict__") else ()
    flat = [one for value in inside for one in (value if isinstance(value, list | tuple) else [value])]
    return next((one for one in flat if callable(one) and _is_users(one)), part)


def _is_users(part: object) -> bool:
    return type(part).__module__.partition(".")[0] not in (*SHIPPED, "builtins")
