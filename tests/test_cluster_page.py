"""The commands of docs/cluster.md are understood, and its settings exist."""

import re
import shlex

import pytest

from pipelinerl.config import RayExecutorConfig
from pipelinerl.launcher.compose import compose_config
from pipelinerl.paths import ROOT
from pipelinerl.slurm.script import script

PAGE = (ROOT / "docs" / "cluster.md").read_text()
LINES = [line for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def commands(name: str) -> list[list[str]]:
    """Returns the arguments of each command that the page shows."""
    found = [line.partition(name)[2].partition(" | ")[0] for line in LINES if f"{name} " in line]
    assert found
    return [shlex.split(arguments) for arguments in found]


@pytest.mark.parametrize("arguments", commands("launch.py"), ids=" ".join)
def test_a_run_is_understood(arguments):
    assert compose_config(arguments).executor.backend == "ray"


@pytest.mark.parametrize("arguments", commands("pipelinerl.slurm"), ids=" ".join)
def test_a_script_is_printed_and_its_run_is_understood(arguments):
    script(arguments)
    if "--" in arguments:
        compose_config(["executor=ray", "streams=redis", *arguments[arguments.index("--") + 1 :]])


def test_the_settings_that_the_page_names_exist():
    named = re.findall(r"`(executor|world)\.(\w+)", PAGE)
    assert {section for section, _ in named} == {"executor", "world"}
    for section, key in named:
        known = RayExecutorConfig.model_fields if section == "executor" else compose_config([]).world
        assert key in known if section == "executor" else hasattr(known, key), f"{section}.{key}"
