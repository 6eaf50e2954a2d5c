"""What vLLM makes of the recipes' commands on an H100, which is faked (`faked_h100`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import vllm_servers
from benchmarks.gpu_check.models import write_config
from contracts.limits import START_VARIABLE
from pipelinerl.config import RunConfig
from pipelinerl.launcher.composing.compose import compose_config
from tests.extensions.stored_weights.test_launch import jobs_of

pytestmark = pytest.mark.engines

PROGRAM = Path(__file__).with_name("faked_h100.py")
RECIPES = ("math_7b", "math_7b_4gpu", "math_32b")


@pytest.fixture(scope="module")
def recipes(tmp_path_factory) -> dict[str, tuple[RunConfig, dict]]:
    """Returns configuration and vLLM's limits by recipe. A model is a config.json of the recipe's shape."""
    configs = {}
    commands = []
    for recipe in RECIPES:
        configs[recipe] = compose_config([f"+exp={recipe}"])
        model = tmp_path_factory.mktemp(recipe)
        write_config(model, configs[recipe].model.shape)
        jobs = jobs_of(model, f"+exp={recipe}", f"model.path={model}")
        commands.append(json.dumps(jobs["server-0"].command[3:]))
    environment = os.environ | {
        "PYTHONPATH": ".",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        START_VARIABLE: jobs["server-0"].environment[START_VARIABLE],
    }
    done = subprocess.run(
        [vllm_servers.PYTHON, PROGRAM, *commands], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = map(json.loads, done.stdout.splitlines()[-len(RECIPES) :])
    return {recipe: (configs[recipe], limits) for recipe, limits in zip(RECIPES, found, strict=True)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_server_has_the_runs_context_a_place_for_each_request_and_graphs(recipes, recipe):
    config, limits = recipes[recipe]
    requests = config.inference.concurrency + config.eval.concurrency
    assert (limits["context"], limits["tokens"]) == (10_000, 8192)
    assert limits["places"] >= requests
    assert limits["graphs"] == "FULL_AND_PIECEWISE" and limits["largest_graph"] >= requests


def test_vllm_waits_for_its_engine_as_long_as_the_run(recipes):
    config, limits = recipes[RECIPES[-1]]
    assert limits["start_s"] == config.world.server_start_timeout_s == 3600


def test_vllm_chooses_what_its_page_says_that_no_test_has_run(recipes):
    executors = {recipe: limits["executor"] for recipe, (_, limits) in recipes.items()}
    assert executors == {"math_7b": "uni", "math_7b_4gpu": "uni", "math_32b": "mp"}
    assert all(limits["asynchronous"] and limits["second_runner"] for _, limits in recipes.values())
