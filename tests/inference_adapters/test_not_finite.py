"""What is not finite: a row of logits fails one request, weights fail their update, and both harm nobody."""

import asyncio
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.conformance.tiny_model import make_tiny_model
from contracts.inference import SamplingParameters
from inference_adapters.scripted import EMBED, HEAD_BIAS
from inference_adapters.transformers.sampling import sample
from tests.inference_adapters.dying_server import DEADLY
from tests.inference_adapters.servers import Server, serving, wait_ready
from tests.inference_adapters.trainer_peer import joined_trainer, logprobs, trainer_of, weights

NAN_ID = 5
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A model that knows nothing of one token: a NaN for it, in an embedding that is not the head."""
    path = make_tiny_model(tmp_path_factory.mktemp("model"), tied=False)
    spoilt = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        spoilt.get_input_embeddings().weight[NAN_ID] = torch.nan
    spoilt.save_pretrained(path)
    return path


def test_rows_without_a_distribution_say_so_and_leave_the_others_alone():
    torch.manual_seed(0)
    logits = torch.randn(1, 50).repeat(9, 1)
    logits[5] = torch.nan
    logits[6, 3] = torch.inf
    rows = [
        SamplingParameters(1, temperature=0.7), SamplingParameters(1, temperature=1e-38),
        SamplingParameters(1, temperature=1e-45), SamplingParameters(1, temperature=1e-46, top_p=1e-300),
        SamplingParameters(1, top_k=10**400), SamplingParameters(1), SamplingParameters(1, top_p=0.5),
        SamplingParameters(1, temperature=0), SamplingParameters(1, temperature=1e300),
    ]  # fmt: skip
    ids, logprobs = sample(logits, rows, [None] * len(rows))
    assert logprobs.isfinite().tolist() == [True, False, False, True, True, False, False, True, True]
    assert ((ids >= 0) & (ids < 50)).all() and ids[7] == logits[0].argmax()
    for row, temperature in ((0, 0.7), (4, 1.0), (7, 1.0)):
        expected = (logits[0] / temperature).log_softmax(-1)[ids[row]]
        assert logprobs[row] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.asyncio
async def test_a_request_whose_probabilities_are_nan_fails_alone(model):
    with serving("inference_adapters.transformers", "--model", model) as server:
        wait_ready(server.url)
        async with trainer_of(server.url) as trainer:
            alone = (await trainer.complete([9, 10, 11], model=model, **GREEDY))["choices"][0]
            asked = {"model": model, "prompt": [9, NAN_ID, 11], "max_tokens": 8}
            for request in (asked, asked | {"temperature": 0}):
                beside = asyncio.create_task(trainer.complete([9, 10, 11], model=model, **GREEDY))
                status, body = await trainer.post("/v1/completions", request)
                assert (status, body["error"]["code"]) == (500, "engine_failed")
                assert "not finite" in body["error"]["message"]
                other = (await beside)["choices"][0]
                assert other["token_ids"] == alone["token_ids"]
                assert logprobs(other) == pytest.approx(logprobs(alone), abs=1e-4)
            await trainer.wait_running(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("receive", ["paused", "staged"])
@pytest.mark.parametrize(("spoilt", "value"), [(EMBED, torch.nan), (HEAD_BIAS, torch.inf)])
async def test_weights_that_are_not_finite_fail_the_update_and_touch_nothing(
    server: Server, receive, spoilt, value
):
    """`EMBED` is in the first bucket, `HEAD_BIAS` in the last."""
    async with joined_trainer(server.url) as trainer:
        before = await trainer.greedy()
        sent = weights(2)
        sent[spoilt].view(-1)[-1] = value
        status = await trainer.publish(2, sent, receive=receive)
        assert (status["state"], status["touched"]) == ("failed", False)
        assert spoilt in status["error"] and "not finite" in status["error"]
        assert (await trainer.get("/health"))[0] == 200 and await trainer.greedy() == before
        await trainer.join()
        assert (await trainer.publish(2, weights(2)))["state"] == "live"


@pytest.mark.asyncio
async def test_a_generation_loop_that_died_ends_its_server_with_words(model):
    with serving("tests.inference_adapters.dying_server", "--model", model) as server:
        wait_ready(server.url)
        async with trainer_of(server.url) as trainer:
            body = {"model": model, "prompt": [9, 10], "max_tokens": 900, "temperature": DEADLY}
            status, answer = await trainer.post("/v1/completions", body)
        assert (status, answer["error"]["code"]) == (500, "engine_failed")
        _, errors = await asyncio.to_thread(server.process.communicate)
        assert server.process.returncode == -signal.SIGTERM
    words = "generation has ended: ArithmeticError: the sampler is broken, and so this server ends"
    assert any(line.startswith(words) for line in errors.splitlines())
