"""What installed packages add to the kit: guarantees of their own, and parts of the kit's guarantees.

A package names an object of the class `Registered` under the entry point `pipelinerl.guarantees`.
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
Part = Callable[[Bench], Awaitable[str]]  # the check of a part; it returns what it measured
Checks = Mapping[Guarantee, Parts[Part]]


@dataclass(frozen=True)
class Registered:
    """What one package adds.

    capabilities: those of servers that its guarantees are about.
    guarantees: in the order in which they are checked, after the kit's own.
    parts: further parts of a guarantee of the kit, by its code and its part before which they are checked.
    """

    capabilities: Collection[str]
    guarantees: Checks
    parts: Mapping[tuple[str, str], Parts[Part]] = field(default_factory=dict)


def registered() -> list[Registered]:
    """Returns what the installed packages have registered."""
    return [entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]


def with_registered(own: Checks, others: Sequence[Registered]) -> dict[Guarantee, Parts[Part]]:
    """Returns the kit's own guarantees and those of others."""
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
    """Raises ValueError if servers declare channels of which no registered guarantee asks anything."""
    covered = {word for other in others for word in other.capabilities}
    unproven = [kind for kind in get_args(ChannelKind) if kind in capabilities and kind not in covered]
    if unproven:
        raise ValueError(
            f"the servers declare {' and '.join(unproven)}, and no installed package has guarantees of it: "
            "install pipelinerl here (pip install --editable .), or name what to check (--only)"
        )
