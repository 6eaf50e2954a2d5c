"""Draws mutants at random: one of mutmut's mutations, at a random location in the adapters' code.

String literals are not mutated, because most are messages; neither are annotations and default values.
"""

import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

KEPT = (cst.Annotation, cst.BaseString, cst.Parameters, cst.Import, cst.ImportFrom, cst.Decorator)


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    before: str  # the changed lines
    after: str
    code: str  # of the mutated file


class _Places(cst.CSTVisitor):
    """Collects the nodes that mutmut can mutate, each with its mutated forms."""

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, list[cst.CSTNode]]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, KEPT):
            return False
        forms = [
            form for kind, operator in mutation_operators if isinstance(node, kind) for form in operator(node)
        ]
        if forms:
            self.found.append((node, forms))
        return True


def drawn(root: Path, files: list[str], seed: int) -> Iterator[Mutant]:
    """Yields mutants in the order in which they are drawn, at most one per location."""
    modules = {file: cst.parse_module((root / file).read_text()) for file in files}
    places = [(file, *place) for file, module in modules.items() for place in _places(module)]
    generator = random.Random(seed)
    for file, node, forms in generator.sample(places, len(places)):
        mutated = modules[file].deep_replace(node, generator.choice(forms))
        yield _described(file, modules[file].code, mutated.code)


def _places(module: cst.Module) -> list[tuple[cst.CSTNode, list[cst.CSTNode]]]:
    visitor = _Places()
    module.visit(visitor)
    return visitor.found


def _described(file: str, code: str, mutated: str) -> Mutant:
    before = code.splitlines()
    after = mutated.splitlines()
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [change for change in changes if change[0] != "equal"]
    first, last = changed[0], changed[-1]
    old = "\n".join(before[first[1] : last[2]])
    new = "\n".join(after[first[3] : last[4]])
    return Mutant(file, first[1] + 1, old, new, mutated)
