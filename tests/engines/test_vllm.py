"""The vLLM adapter on the real engine: every guarantee, long rollouts, tensor parallelism, a whole run. More
runs: test_sglang, with other engines in one weight group, and test_math_7b."""

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest
import torch

from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.tiny_model import make_tiny_model
from tests.conformance.eighths import for_each_eighth
from tests.conformance.kept import assert_kept
from tests.engines.long_rollouts import rollouts_across
from tests.engines.repeated_prompts import are_answered_by_one_set_of_weights
from tests.engines.scraped_updates import metrics_after_an_update
from tests.engines.twenty_steps import learns_in_twenty_steps
from tests.engines.vllm_servers import vllm_process, vllm_server
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.metrics import told, value
from tests.inference_adapters.openai_surface import CHECKS, NAME, Surface
from tests.inference_adapters.servers import Server as Started
from tests.inference_adapters.servers import contract, wait_ready

pytestmark = pytest.mark.engines

TOKEN = "a-token"
TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
NAMES = ["--served-model-name", NAME]
SMALL_BLOCKS = ["--block-size", "32"]  # a prompt of the kit's fills several: they could be found again


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def untied(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="module")
def started(tied) -> Iterator[Started]:
    with vllm_process(tied, *TOOLS, *SMALL_BLOCKS, *NAMES, token=TOKEN) as server:
        wait_ready(server.url, within_s=300)
        yield server


@pytest.fixture(scope="module")
def server(started) -> str:
    return started.url


@pytest.mark.in_turn
@for_each_eighth
def test_it_keeps_everything_it_declares(server, tied, codes):
    assert_kept(check_inference([server], tied, token=TOKEN, only=codes))


def test_it_declares_all_but_score(server):
    declared = contract(server, TOKEN)["capabilities"]
    assert set(declared) == {
        "staged",
        "truncation",
        "seed",
        "stop_strings",
        "tools",
        "forced_calls",
        "stream",
        "top_logprobs",
        "openai",
        "metrics",
        "relay",
        "shared",
        "delta",
    }


def test_its_metrics_tell_an_update_and_a_completion_and_vllms_own_come_after_them(server, tied):
    samples = metrics_after_an_update(server, tied, TOKEN)
    assert value(samples, "vllm:generation_tokens_total") > 0
    assert value(samples, "vllm:num_requests_running") == 0
    text = told(server, TOKEN)
    assert text.count("# TYPE vllm:generation_tokens_total counter") == 1
    assert text.index("contract_weight_version") < text.index("vllm:generation_tokens_total")


@pytest.mark.parametrize(
    "codes", [["G1"], pytest.param(["G2", "G3", "G5", "G6"], marks=pytest.mark.long)], ids=" ".join
)
def test_two_tensor_parallel_workers_are_two_ranks_with_an_untied_head_and_no_tools(untied, codes):
    """The workers spin while they wait for each other, on this machine's few cores: hence the patience. A
    server that was not told to read calls refuses tools: G6."""
    with vllm_server(untied, "--tensor-parallel-size", "2") as url:
        verdicts = check_inference([url], untied, only=codes, timeout_s=30)
        assert contract(url)["ranks"] == 2
    assert_kept(verdicts)


def test_a_rollout_across_ten_updates(server, tied):
    """Its spans add up, and every log-probability is that of the version which sampled the token."""
    reference = Reference(tied)
    samples = asyncio.run(rollouts_across(server, TOKEN, reference, updates=10))
    longest = max(samples, key=lambda sample: len(sample.spans))
    assert [version for version, _, _ in longest.spans] == list(range(1, 12))
    for sample in samples:
        assert sample.spans[0][1] == 0 and sample.spans[-1][2] == len(sample.token_ids) == 1500
        for version, start, end in sample.spans:
            expected = reference.logprobs(
                reference.weights(version), sample.prompt_token_ids, sample.token_ids, 1.0
            )
            errors = [abs(sample.logprobs[i] - float(expected[i])) for i in range(start, end)]
            assert max(errors) < 1e-3, (version, start, end)


@pytest.mark.asyncio
@pytest.mark.parametrize("receive", ["paused", "staged"])
async def test_weights_with_a_nan_in_the_last_bucket_touch_nothing(server, tied, receive):
    reference = Reference(tied)
    async with aiohttp.ClientSession() as http:
        one = Server(http, server, TOKEN)
        trainer = TrainerPeer([one], reference.tied, Settings(token=TOKEN, timeout_s=20))
        try:
            await trainer.join()
            await trainer.publish(1, reference.weights(1))
            weights = {name: tensor.clone() for name, tensor in reference.weights(2).items()}
            last = list(weights)[-1]
            weights[last].view(-1)[-1] = torch.nan
            request = trainer.update_request(2, weights, receive=receive)
            before = await one.complete([5, 6, 7], 20, temperature=0)
            await trainer.request_update(request)
            await trainer.send(packed(weights, request["bucket_bytes"]))
            (status,) = await trainer.outcomes(2)
            assert (status.state, status.touched) == ("failed", False) and last in status.error
            after = await one.complete([5, 6, 7], 20, temperature=0)
            assert after.token_ids == before.token_ids and after.spans == [(1, 0, len(after.token_ids))]
            await trainer.join()
            await trainer.publish(2, reference.weights(2), receive=receive)
        finally:
            trainer.leave()


@pytest.fixture(scope="module")
def surface(started) -> Surface:
    return Surface(started.url, TOKEN)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_openai_surface(surface, check):
    check(surface)


def test_a_prompt_that_is_repeated_during_an_update(server, tied):
    are_answered_by_one_set_of_weights(server, tied, TOKEN)


def test_hostile_requests_harm_nobody(started, tied):
    harm_nobody(started, tied, TOKEN)


@pytest.mark.long
def test_a_run_of_twenty_steps(tmp_path):
    assert learns_in_twenty_steps(tmp_path, "inference=vllm") == {"vllm"}
