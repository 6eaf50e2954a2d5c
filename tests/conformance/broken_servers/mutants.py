"""The registry of broken servers: the guarantee that each breaks, and how it is made."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from inference_adapters.scripted import ScriptedEngine

TOKEN = "secret"
TOKEN_DELAY_S = 0.002


@dataclass(frozen=True)
class Mutant:
    make: Callable[[argparse.Namespace], ScriptedEngine]
    own: str  # the guarantee that must catch the fault
    part: str  # its part that says so
    says: str  # a regular expression for the kit's measurement
    hangs: bool = False  # whether the fault is that an answer never comes
    updates: int = 8  # of G8
    thorough: bool = False  # whether only the longer depth detects it
    timed: bool = False  # whether only speed shows it, which a busy machine can hide


MUTANTS: dict[str, Mutant] = {}


def mutant(own: str, says: str, part: str, **more: bool | int) -> Callable:
    """Registers an engine class, or a function that breaks the server around a correct engine.

    more: further fields of `Mutant`.
    """

    def register(broken: Callable) -> Callable:
        def make(options: argparse.Namespace) -> ScriptedEngine:
            if isinstance(broken, type):
                return broken(TOKEN_DELAY_S)
            broken(options)
            return ScriptedEngine(TOKEN_DELAY_S)

        assert broken.__name__ not in MUTANTS
        MUTANTS[broken.__name__] = Mutant(make, own, part, says, **more)
        return broken

    return register


@mutant("none", "", part="")
class Correct(ScriptedEngine):
    """The control: it passes every guarantee."""
