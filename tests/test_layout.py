"""The top of `pipelinerl/` has few entries, and its packages say what they are."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "pipelinerl"
MOST = 38
PACKAGES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_the_top_of_the_package_has_few_entries():
    found = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert len(found) <= MOST
    assert all(name.endswith(".py") or name in PACKAGES for name in found)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is_for_and_what_it_must_not_know(package):
    docstring = " ".join(
        ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text())).split()
    )
    assert "ust not know" in docstring
    assert "Called by" in docstring or "Built by" in docstring
