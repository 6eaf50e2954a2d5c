"""The `transformers` adapter beyond what the conformance kit asks: draws, a full cache, bad models.

The random weights are large, so that every token depends sharply on the context before it.
"""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from contracts.conformance.tiny_model import make_sinks_model, make_tiny_model
from contracts.inference import SamplingParameters
from inference_adapters.transformers.__main__ import main
from inference_adapters.transformers.engine import TransformersEngine
from inference_adapters.transformers.sampling import sample
from tests.trainer_adapters.architectures import tiny_config

pytestmark = pytest.mark.asyncio

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "initializer_range": 0.15, "bos_token_id": None,
}  # fmt: skip


def qwen2(seed: int) -> PreTrainedModel:
    """Returns a model with logits of 0 for the end-of-sequence token, where the likely ones have about 7."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True, eos_token_id=0)).eval()
    with torch.no_grad():
        model.lm_head.weight[0] = 0
    return model


def error(model: PreTrainedModel, prompt: list[int], ids: list[int], reported: list[float]) -> float:
    """Returns how far the reported log-probabilities are off, at a temperature of 0.5."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    expected = (logits.float() / 0.5).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    return float((expected - torch.tensor(reported)).abs().max())


def prompt_of(seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (30,), generator=generator).tolist()


async def test_draws_follow_the_reported_distribution():
    torch.manual_seed(0)
    logits = 2 * torch.randn(1, 20)
    n = 40_000
    rows = [SamplingParameters(1, temperature=0.7), SamplingParameters(1, temperature=0.0)]
    ids, logprob = sample(logits.expand(2 * n, -1), rows * n, [None] * 2 * n)
    sampled, greedy = ids[0::2], ids[1::2]
    p = (logits[0] / 0.7).softmax(-1)
    frequencies = torch.bincount(sampled, minlength=20) / n
    assert (frequencies - p).abs().sum() < 0.02
    assert (logprob[0::2] - p.log()[sampled]).abs().max() < 1e-5
    assert (greedy == logits.argmax()).all()
    assert (logprob[1::2] - logits[0].log_softmax(-1).max()).abs().max() < 1e-5


async def test_a_full_cache_delays_requests_and_changes_nothing(tmp_path):
    """16 blocks hold 512 tokens; 8 requests of 180 want 1440. Requests are put back and read again."""
    model = qwen2(0)
    make_tiny_model(tmp_path)
    model.save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path), "float32", "cpu", max_batch_tokens=64, num_blocks=16)
    await engine.start(3)
    try:
        asked = [run_to_end(engine, prompt_of(i), 150) for i in range(8)]
        for i, (ids, logprob, versions, reason) in enumerate(await asyncio.gather(*asked)):
            assert len(ids) == len(versions) and set(versions) == {3}
            assert error(model, prompt_of(i), ids, logprob) < 1e-4
            assert (len(ids), reason) == (150, "length") or (ids[-1], reason) == (0, "stop")
    finally:
        await engine.close()


async def test_the_queue_moves_on_when_all_that_run_are_cancelled(tmp_path):
    """The library takes no waiting request in after the cache was full until a running one finishes."""
    make_tiny_model(tmp_path)
    qwen2(0).save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path), "float32", "cpu", max_batch_tokens=64, num_blocks=16)
    await engine.start(0)
    batcher, scheduler = engine._batcher, engine._batcher.batch_processor.scheduler
    try:
        tasks = [asyncio.create_task(run_to_end(engine, prompt_of(i), 400)) for i in range(6)]
        cancelled: list[str] = []
        while not cancelled:
            await asyncio.sleep(0.001)
            assert not all(task.done() for task in tasks), "the cache was never full"
            with batcher.pause():
                if scheduler.block_new_requests and scheduler.waiting_requests:
                    cancelled = list(scheduler.active_requests)
                    for request_id in cancelled:
                        batcher.cancel_request(request_id)
        while sum(task.done() for task in tasks) < len(tasks) - len(cancelled):
            await asyncio.sleep(0.01)  # it hangs if what waited was never started
    finally:
        await engine.abort_requests()
        await asyncio.gather(*tasks)
        await engine.close()


async def run_to_end(engine: TransformersEngine, prompt: list[int], max_tokens: int) -> tuple:
    ids, logprob, versions = [], [], []
    async for delta in engine.generate(prompt, SamplingParameters(max_tokens, temperature=0.5)):
        ids += delta.token_ids
        logprob += delta.logprobs
        versions += delta.versions
    return ids, logprob, versions, delta.finish_reason


async def test_sinks_are_part_of_what_is_sampled(tmp_path):
    model = make_sinks_model(tmp_path)
    engine = TransformersEngine(model, "float32", "cpu", 64, 64)
    await engine.start(0)
    prompt = [*range(10, 50)]  # longer than the window
    ids, logprobs, _, _ = await run_to_end(engine, prompt, 12)
    await engine.close()
    reference = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / 0.5).log_softmax(1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)
    assert torch.tensor(logprobs) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "spoil",
    [
        "not a model directory",
        "no chat template",
        "has layers of linear_attention: use inference=vllm",
        "bounds its attention scores (attn_logit_softcapping): use inference=vllm",
    ],
)
async def test_a_model_that_cannot_be_served_is_one_line(tmp_path, monkeypatch, spoil):
    path = Path(make_tiny_model(tmp_path))
    if spoil == "not a model directory":
        path = Path(tmp_path, "nothing")
    elif spoil == "no chat template":
        (path / "chat_template.jinja").unlink()
    else:
        tiny_config("gemma2" if "bounds" in spoil else "minimax").save_pretrained(path)
    monkeypatch.setattr("sys.argv", ["transformers", "--model", str(path), "--port", "0"])
    with pytest.raises(SystemExit, match="^cannot serve: [^\n]*$") as ended:
        main()
    assert str(path) in ended.value.code and spoil in ended.value.code
