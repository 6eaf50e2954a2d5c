"""Loads the guarantees that installed packages add to the kit.

A package names a `Registered` object under the entry point `pipelinerl.guarantees`.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import get_args

from contracts.channel import ChannelKind
from contracts.conformance.inference.bench import Bench
from contracts.conformance.parts import Parts
from contracts.conformance.verdicts import Guarantee

GROUP = "pipelinerl.guarantees"
Part = Callable[[Bench], Awaitable[str]]  # checks a part, and returns the measurement as text
Checks = Mapping[Guarantee, Parts[Part]]


@dataclass(frozen=True)
class Registered:
    """The guarantees of one package.

    capabilities: capabilities of servers that its guarantees cover.
    guarantees: checked in this order, after the kit's own guarantees.
    parts: (code, part) -> additional parts of that guarantee of the kit, which are checked before that part.
    """

    capabilities: Collection[str]
    guarantees: Checks
    parts: Mapping[tuple[str, str], Parts[Part]] = field(default_factory=dict)


def registered() -> list[Registered]:
    """Loads the entry points of all installed packages."""
    return [entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]


def with_registered(own: Checks, others: Sequence[Registered]) -> dict[Guarantee, Parts[Part]]:
    """Merges the kit's guarantees with those of other packages."""
    checks: dict[Guarantee, Parts[Part]] = {}
    for guarantee, parts in own.items():
        merged: dict[str, Part] = {}
        for name, check in parts.items():
            for other in others:
                merged |= other.parts.get((guarantee.code, name), {})
            merged[name] = check
        checks[guarantee] = merged
    for other in others:
        checks |= other.guarantees
    return checks


def check_covered(capabilities: Iterable[str], others: Sequence[Registered]) -> None:
    """Raises ValueError if servers declare channels that no registered guarantee covers."""
    covered = {word for other in others for word in other.capabilities}
    unproven = [kind for kind in get_args(ChannelKind) if kind in capabilities and kind not in covered]
    if unproven:
        raise ValueError(
            f"the servers declare {' and '.join(unproven)}, and no installed package has guarantees of it: "
            "install pipelinerl here (pip install --editable .), or name what to check (--only)"
        )
