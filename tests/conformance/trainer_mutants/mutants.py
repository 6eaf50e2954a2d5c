"""A broken trainer's entry in the list: the guarantee that must catch it, and what the verdict must say."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.trainer import TrainerWorker

MUTANTS: list["Mutant"] = []


@dataclass(frozen=True)
class Mutant:
    trainer: type[TrainerWorker]
    breaks: str  # the guarantee that it must break
    part: str  # its part that says so
    says: str  # a regular expression for the verdict
    ranks: int = 1
    tied: bool = True  # which of the kit's two models it is tried on: the one with a tied head
    hangs: bool = False  # whether the fault is that its ranks wait for each other without end
    needs_deepspeed: bool = False


def mutant(breaks: str, says: str, *, part: str, **more: bool | int) -> Callable[[type], type]:
    """Returns a decorator that lists a broken trainer. more: further fields of `Mutant`."""

    def listed(trainer: type) -> type:
        MUTANTS.append(Mutant(trainer, breaks, part, says, **more))
        return trainer

    return listed
