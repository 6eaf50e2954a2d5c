"""The registry of broken servers: the guarantee that each breaks, and how it is made."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from inference_adapters.scripted import ScriptedEngine

TOKEN = "secret"
TOKEN_DELAY_S = 0.002
OF_STORES = frozenset({"G12", "G13", "G14", "G15", "G16"})


@dataclass(frozen=True)
class Mutant:
    make: Callable[[argparse.Namespace], ScriptedEngine]
    own: str  # the guarantee that must catch the fault
    says: str  # a regular expression for the kit's measurement
    also: frozenset[str]  # other guarantees that it breaks
    thorough: bool = False  # whether only the longer depth detects it
    timed: bool = False  # whether it is detected by timing, which a busy machine can hide

    @property
    def caught_by(self) -> frozenset[str]:
        # Each of them pulls good and bad versions, over and over.
        return self.also | {self.own} | (OF_STORES if self.own in OF_STORES else frozenset())


MUTANTS: dict[str, Mutant] = {}


def mutant(own: str, says: str, also: str = "", thorough: bool = False, timed: bool = False) -> Callable:
    """Registers an engine class, or a function that breaks the server around a correct engine."""

    def register(broken: Callable) -> Callable:
        def make(options: argparse.Namespace) -> ScriptedEngine:
            if isinstance(broken, type):
                return broken(TOKEN_DELAY_S)
            broken(options)
            return ScriptedEngine(TOKEN_DELAY_S)

        MUTANTS[broken.__name__] = Mutant(make, own, says, frozenset(also.split()), thorough, timed)
        return broken

    return register


@mutant("none", "")
class Correct(ScriptedEngine):
    """The control: it passes every guarantee."""
