"""Modules that have moved: whoever uses an old name is told the new one."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from contracts.support.moved import MOVED, new_path
from pipelinerl.paths import ROOT


def answer(*arguments: str) -> str:
    """Returns what Python says last. Without installed packages, which may be an earlier version of this."""
    done = subprocess.run([sys.executable, "-S", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("old", MOVED)
def test_the_table_names_modules_that_there_are(old):
    assert find_spec(MOVED[old])
    assert not (path := ROOT.joinpath(*old.split("."))).with_suffix(".py").exists()
    assert not [*path.glob("*.py")]


def test_a_path_is_that_of_a_module_or_of_what_is_in_it():
    assert new_path("pipelinerl.view.trace.X") == "extensions.viewer.trace.X"
    assert new_path("pipelinerl.viewer") is None


@pytest.mark.parametrize(
    "program",
    ["import pipelinerl.view.trace", "from pipelinerl.view import trace", "from pipelinerl import view"],
)
def test_an_import_of_an_old_name_is_told_the_new_one(program):
    assert answer("-c", program) == "ModuleNotFoundError: pipelinerl.view is extensions.viewer now"


@pytest.mark.parametrize(
    ("command", "new"),
    [
        ("pipelinerl.view.trace", "pipelinerl.view is extensions.viewer now"),
        ("pipelinerl.track", "pipelinerl.track is extensions.viewer.track now"),
        ("contracts.store.origin", "contracts.store is extensions.stored_weights.store now"),
        ("trainer_adapters.islands.lighthouse", "trainer_adapters.islands is extensions.islands now"),
    ],
)
def test_a_command_of_an_old_name_is_told_the_new_one(command, new):
    assert new in answer("-m", command)


def test_what_has_never_been_there_is_not_answered():
    assert answer("-c", "import pipelinerl.nothing") == (
        "ModuleNotFoundError: No module named 'pipelinerl.nothing'"
    )
