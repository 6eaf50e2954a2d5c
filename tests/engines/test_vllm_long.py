"""vLLM with several processes: they draw apart, end together, and start only as the contract allows."""

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Iterator

import aiohttp
import psutil
import pytest

from benchmarks import vllm_servers
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server as Client
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.tiny_model import make_tiny_model
from pipelinerl.paths import ROOT
from tests.conformance.kept import assert_kept
from tests.engines.repeated_prompts import are_answered_by_one_set_of_weights
from tests.engines.servers import ENVIRONMENT, engine_server
from tests.engines.tool_rollouts import (
    calls_and_results_are_one_sequence,
    calls_that_are_cut_short_say_so,
)
from tests.inference_adapters.servers import Server, contract
from tests.limits import HANG_S
from tests.tool_model import make_tool_model

pytestmark = pytest.mark.long

TOKEN = "a-token"
TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pair(model) -> Iterator[tuple[Server, Server]]:
    """The tests below end them, one each."""
    with engine_server("vllm", model) as one, engine_server("vllm", model) as other:
        yield one, other


def sampled(server: Server, model: str) -> list[int]:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 30, "return_token_ids": True}
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def test_two_servers_draw_different_samples(pair, model):
    one, other = pair
    assert sampled(one, model) != sampled(other, model)


def test_an_engine_that_dies_in_an_update_ends_its_server(pair, model):
    server, _ = pair
    asyncio.run(update_in_which_the_engine_dies(server, Reference(model)))
    assert server.process.wait(timeout=HANG_S) is not None


async def update_in_which_the_engine_dies(server: Server, reference: Reference) -> None:
    async with aiohttp.ClientSession() as http:
        trainer = TrainerPeer([Client(http, server.url, None)], reference.tied, Settings(timeout_s=HANG_S))
        await trainer.join()
        weights = reference.weights(1)
        request = trainer.update_request(1, weights)
        await trainer.request_update(request)
        await trainer.send(packed(weights, request["bucket_bytes"])[:1])
        (engine,) = [
            p for p in psutil.Process(server.process.pid).children() if p.children()
        ]  # of the workers
        engine.kill()
        trainer.leave()


def test_a_server_that_is_killed_leaves_nothing_behind(pair):
    _, server = pair
    others = psutil.Process(server.process.pid).children(recursive=True)
    assert others
    server.process.kill()
    server.process.wait()
    _, alive = psutil.wait_procs(others, timeout=HANG_S)
    assert not alive


@pytest.mark.parametrize(
    ("options", "environment", "says"),
    [
        (["--logprobs-mode", "raw_logprobs"], {}, "--logprobs-mode cannot be set"),
        (["--api-key", "secret"], {}, "set PIPELINERL_TOKEN"),
        (["--data-parallel-size", "2"], {}, "start more servers"),
        ([], {"VLLM_SERVER_DEV_MODE": "1"}, "unset VLLM_SERVER_DEV_MODE"),
    ],
)
def test_what_would_break_the_contract_is_refused(model, options, environment, says):
    ended = subprocess.run(
        [vllm_servers.PYTHON, "-m", "inference_adapters.vllm", "--model", model, *options],
        env=ENVIRONMENT | environment,
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 1
    assert says in ended.stderr.splitlines()[-1]


def test_two_tensor_parallel_workers_are_two_ranks_with_an_untied_head_and_no_tools(tmp_path):
    """The workers spin while they wait for each other, on this machine's few cores: hence the patience. A
    server that was not told to read calls refuses tools: G6."""
    model = make_tiny_model(tmp_path, tied=False)
    with engine_server("vllm", model, "--tensor-parallel-size", "2") as server:
        verdicts = check_inference([server.url], model, only=["G1", "G2", "G3", "G5", "G6"], timeout_s=HANG_S)
        assert contract(server.url)["ranks"] == 2
    assert_kept(verdicts)


def test_a_prompt_that_is_repeated_during_an_update(model):
    with engine_server("vllm", model, token=TOKEN) as server:
        are_answered_by_one_set_of_weights(server.url, model, TOKEN)


def test_calls_and_results_are_one_sequence_of_sampled_tokens(tmp_path):
    model = make_tool_model(tmp_path, ["hermes"])
    with engine_server("vllm", model, *TOOLS, token=TOKEN) as server:
        calls_and_results_are_one_sequence(server.url, model, TOKEN)
        calls_that_are_cut_short_say_so(server.url, model, TOKEN)
