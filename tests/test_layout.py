"""The top of `pipelinerl/` has few entries. Its packages, and the extensions, say what they are."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pipelinerl"
MOST = 37
EXTENSIONS = sorted(path.parent for path in (ROOT / "extensions").glob("*/__init__.py"))
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


@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda path: path.name)
def test_an_extension_says_what_it_plugs_into_and_has_tests(extension):
    docstring = ast.get_docstring(ast.parse((extension / "__init__.py").read_text()))
    assert "Plugs into" in docstring
    assert [*(ROOT / "tests" / "extensions" / extension.name).rglob("test_*.py")]
