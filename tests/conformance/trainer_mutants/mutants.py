"""A broken trainer's entry in the list: the guarantee that must catch it, and what the verdict must say."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.trainer import TrainerWorker

MUTANTS: list["Mutant"] = []


@dataclass(frozen=True)
class Mutant:
    trainer: type[TrainerWorker]
    breaks: str  # the guarantee that it is made to break
    says: str  # in the verdict, as a regular expression
    ranks: int = 1
    tied: bool = True  # the head of the model that it is tried on, of the kit's two
    also: frozenset[str] = frozenset()  # the other guarantees that cannot hold either
    why: str = ""  # they cannot
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
