"""A broken trainer's entry in the list: the guarantee that must catch it, and what the verdict must say."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.trainer import TrainerWorker

MUTANTS: list["Mutant"] = []


@dataclass(frozen=True)
class Mutant:
    trainer: type[TrainerWorker]
    breaks: str  # the guarantee that it must break
    says: str  # a regular expression for the verdict
    ranks: int = 1
    tied: bool = True  # which of the kit's two models it is tried on: the one with a tied head
    also: frozenset[str] = frozenset()  # other guarantees that it necessarily breaks
    why: str = ""  # the reason for `also`
    patience_s: float = 60


def mutant(
    breaks: str,
    says: str,
    *,
    ranks: int = 1,
    tied: bool = True,
    also: str = "",
    why: str = "",
    patience_s: float = 60,
) -> Callable[[type], type]:
    """Returns a decorator that lists a broken trainer."""

    def listed(trainer: type) -> type:
        entry = Mutant(trainer, breaks, says, ranks, tied, frozenset(also.split()), why, patience_s)
        MUTANTS.append(entry)
        return trainer

    return listed
