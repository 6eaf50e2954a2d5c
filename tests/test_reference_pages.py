"""Pages that list what the code has: keys, dependencies, messages."""

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

from tests import keys_page

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("contracts", "inference_adapters", "trainer_adapters", "pipelinerl", "extensions")
LEFT_OUT = "sglang-cpu"  # what SGLang needs on a CPU has no line of its own


def test_the_page_lists_the_keys_as_they_are():
    assert keys_page.PAGE.read_text() == keys_page.written(), "run python -m tests.keys_page --write"


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [need for extra, needs in extras.items() if extra != LEFT_OUT for need in needs]
    names = {re.match(r"[\w-]+", need)[0] for need in [*project["dependencies"], *needs]} - {"pipelinerl"}
    table = (ROOT / "docs" / "dependencies.md").read_text().split("| package | for |")[1].split("\n\n")[0]
    cells = [re.sub(r"\(.*?\)", "", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert {name.strip() for cell in cells for name in cell.split(",")} == names | {"sglang"}


@functools.cache
def messages() -> list[str]:
    """Returns the strings of the code, with `...` where a value is filled in."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    found = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(p.value if isinstance(p, ast.Constant) else "..." for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sd]|%\.\d?f", "...", node.value))
    return found


QUOTED = re.findall(
    r"^### `([^`]*)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.MULTILINE
)


@pytest.mark.parametrize("message", QUOTED)
def test_the_code_has_the_message(message):
    pattern = ".*".join(map(re.escape, message.split("...")))
    assert any(re.fullmatch(pattern, text, re.DOTALL) for text in messages())
