"""The parts of guarantees. A guarantee holds if all its parts do, and a part can be checked alone.

Both kits list the parts of each guarantee in the order in which they are checked, by names without spaces.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from contracts.conformance.verdicts import Guarantee

Check = TypeVar("Check")
Parts = Mapping[str, Check]  # the check of each part, by its name


def chosen(
    guarantees: Mapping[Guarantee, Parts[Check]], only: Iterable[str] | None, part: str | None
) -> dict[Guarantee, Parts[Check]]:
    """Returns the guarantees whose codes are in `only`, each with its parts; None means all.

    With `part`, `only` has one code, and this part of it is returned alone. Raises ValueError, with a message
    of one line, for an unknown code or part.
    """
    codes = [guarantee.code for guarantee in guarantees]
    wanted = set(codes if only is None else only)
    if unknown := sorted(wanted.difference(codes)):
        raise ValueError(f"no guarantee {unknown[0]}: they are {', '.join(codes)}")
    found = {guarantee: parts for guarantee, parts in guarantees.items() if guarantee.code in wanted}
    if part is None:
        return found
    if len(found) != 1:
        raise ValueError(f"the part {part} is of one guarantee: name it, and no other")
    ((guarantee, parts),) = found.items()
    if part not in parts:
        raise ValueError(f"{guarantee.code} has no part {part}: they are {', '.join(parts)}")
    return {guarantee: {part: parts[part]}}
