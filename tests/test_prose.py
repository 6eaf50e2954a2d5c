"""Finds offences against the rules of style. `python -m tests.test_prose` prints them all."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("contracts", "inference_adapters", "trainer_adapters", "pipelinerl", "extensions", "launch.py")
UNDOCUMENTED_LINES = 12  # of a public function
SENTENCE_WORDS = 25
PAGE_SENTENCE_WORDS = 40

Function = ast.FunctionDef | ast.AsyncFunctionDef
FILES = {package: sorted((ROOT / package).rglob("*.py")) or [ROOT / package] for package in PACKAGES}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def classes() -> dict[str, ast.ClassDef]:
    trees = [tree_of(file) for files in FILES.values() for file in files]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a docstring. An indented block, of code or of arguments, has none."""
    for paragraph in text.split("\n\n"):
        if not all(line.startswith("    ") for line in paragraph.splitlines()):
            yield from re.split(r"(?<=[.!?])\s+|\n(?=[-*] |\w+: )", paragraph)


def long_sentences(tree: ast.Module) -> list[int]:
    """Returns the line of the docstring of every sentence with too many words."""
    counts = [(line, len(s.split())) for line, text in docstrings(tree) for s in sentences(text)]
    return [line for line, words in counts if words > SENTENCE_WORDS]


def packed_assignments(tree: ast.Module) -> list[int]:
    """Returns the lines of assignments such as `a, b = x, y`. A swap is not one."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Tuple)
        and {*map(ast.unparse, target.elts)} != {*map(ast.unparse, node.value.elts)}
    ]


def documented_by_bases(cls: ast.ClassDef) -> set[str]:
    """Returns the names of the methods that a base class in these packages documents."""
    names = {base.id for base in cls.bases if isinstance(base, ast.Name)} - {cls.name}
    bases = [classes()[name] for name in names & classes().keys()]
    own = {m.name for base in bases for m in base.body if isinstance(m, Function) and ast.get_docstring(m)}
    return own.union(*map(documented_by_bases, bases))


def undocumented_functions(tree: ast.Module) -> list[int]:
    """Returns the lines of long public functions and methods without a docstring, inherited or not."""
    found = [node for node in tree.body if isinstance(node, Function)]
    for cls in [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]:
        inherited = documented_by_bases(cls)
        found += [node for node in cls.body if isinstance(node, Function) and node.name not in inherited]
    public = [f for f in found if f.name[0] != "_" and not ast.get_docstring(f)]
    return [f.lineno for f in public if f.end_lineno - f.lineno + 1 > UNDOCUMENTED_LINES]


OFFENCES = {
    "undocumented": undocumented_functions,
    "packed": packed_assignments,
    "long sentence": long_sentences,
}


def places(package: str, offence: str) -> list[str]:
    """Returns where in the package the offence occurs, as `file:line`."""
    find = OFFENCES[offence]
    return [f"{file.relative_to(ROOT)}:{line}" for file in FILES[package] for line in find(tree_of(file))]


@pytest.mark.parametrize("offence", OFFENCES)
@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_offends(package, offence):
    found = places(package, offence)
    assert not found, ", ".join(found)


def long_sentences_of_pages() -> list[str]:
    """Returns the first words of every long sentence of the pages. Code and tables have none."""
    found = []
    for page in PAGES:
        text = re.sub(r"```.*?```|^\|.*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", text):
            parts = re.split(r"(?<=[.!?])\s+", paragraph)
            long = [part for part in parts if len(part.split()) > PAGE_SENTENCE_WORDS]
            found += [f"{page.relative_to(ROOT)}: {' '.join(part.split()[:8])} ..." for part in long]
    return found


def test_no_sentence_of_a_page_is_long():
    assert not long_sentences_of_pages()


if __name__ == "__main__":
    print(*long_sentences_of_pages(), sep="\n")
    for package in PACKAGES:
        print(
            *(f"{place}: {offence}" for offence in OFFENCES for place in places(package, offence)), sep="\n"
        )
