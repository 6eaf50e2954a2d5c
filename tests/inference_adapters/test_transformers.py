"""The `transformers` adapter beyond what the conformance kit asks: draws, seeds, scores, a full cache, bad
models. The random weights are large, so that every token depends sharply on the context before it.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from contracts.conformance.tiny_model import make_tiny_model
from contracts.inference import SamplingParameters
from inference_adapters.transformers.__main__ import main
from inference_adapters.transformers.engine import TransformersEngine
from inference_adapters.transformers.sampling import sample
from tests.inference_adapters.servers import serving, wait_ready
from tests.inference_adapters.trainer_peer import TrainerPeer, logprobs, trainer_of

pytestmark = pytest.mark.asyncio

VOCABULARY = 97
ENDS = [0, 1]  # of `llama`
UPDATES = [  # seed, dtype on the wire, and the tensor that holds a NaN
    (1, torch.float32, None),
    (2, torch.float32, None),
    (3, torch.float32, "model.norm.weight"),
    (4, torch.float32, None),
    (5, torch.bfloat16, None),
    (6, torch.float32, None),
    (7, torch.float32, None),
]
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "initializer_range": 0.15, "bos_token_id": None,
}  # fmt: skip


def qwen2(seed: int) -> PreTrainedModel:
    return rarely_ending(Qwen2ForCausalLM, Qwen2Config, seed, tie_word_embeddings=True, eos_token_id=0)


def llama(seed: int) -> PreTrainedModel:
    return rarely_ending(LlamaForCausalLM, LlamaConfig, seed, tie_word_embeddings=False, eos_token_id=ENDS)


def rarely_ending(model_class, config_class, seed: int, **config) -> PreTrainedModel:
    """Logits of 0 for the end-of-sequence tokens, where the likely ones have about 7; norms and biases
    that are not the same for every seed."""
    torch.manual_seed(seed)
    model = model_class(config_class(**SIZES, **config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.lm_head.weight[config["eos_token_id"]] = 0
    return model


@dataclass
class Served:
    url: str
    model: str

    async def complete(self, trainer: TrainerPeer, prompt, max_tokens: int, **changes) -> "Sampled":
        body = await trainer.complete(prompt, max_tokens, model=self.model, **changes)
        return Sampled(body["prompt_token_ids"], body["choices"][0])


class Sampled:
    def __init__(self, prompt: list[int], choice: dict):
        self.prompt, self.choice = prompt, choice
        self.ids: list[int] = choice["token_ids"]
        self.logprobs = torch.tensor(logprobs(choice))
        self.spans = [(s["version"], s["start"], s["end"]) for s in choice["weight_versions"]]
        assert len(self.ids) == len(self.logprobs) == self.spans[-1][2]

    def reference(self, model: PreTrainedModel, temperature: float = 1.0) -> torch.Tensor:
        """[sampled, V] log-probabilities by one plain forward pass."""
        with torch.no_grad():
            logits = model(torch.tensor([self.prompt + self.ids])).logits[0, len(self.prompt) - 1 : -1]
        return (logits.float() / temperature).log_softmax(-1)

    def error(self, model: PreTrainedModel, temperature: float = 1.0) -> torch.Tensor:
        """[sampled] how far each reported log-probability is off."""
        expected = self.reference(model, temperature).gather(1, torch.tensor(self.ids)[:, None])[:, 0]
        return (expected - self.logprobs).abs()


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path)  # for its tokenizer
    llama(0).save_pretrained(path)
    # A small batch: long prompts are read in pieces.
    with serving(
        "inference_adapters.transformers", "--model", str(path), "--max-batch-tokens", "64"
    ) as server:
        wait_ready(server.url)
        yield Served(server.url, str(path))


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()


async def fresh(served: Served, trainer: TrainerPeer, seed: int = 0) -> PreTrainedModel:
    """A new run whose version 1 is `llama(seed)`."""
    status, body = await trainer.join()
    assert status == 200, body
    model = llama(seed)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    assert (await trainer.publish(1, weights, tied={}, bucket_bytes=1 << 20))["state"] == "live"
    return model


# --- sampling ------------------------------------------------------------------------------------


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


async def test_a_seed_fixes_the_draws_among_any_neighbours(served):
    async with trainer_of(served.url) as trainer:
        await fresh(served, trainer)
        alone = await served.complete(trainer, prompt_of(8), 30, seed=5)
        seeds = [5, 5, 6, None]
        asked = [served.complete(trainer, prompt_of(8), 30, seed=seed) for seed in seeds]
        same, again, other, unseeded = await asyncio.gather(*asked)
        assert same.ids == again.ids == alone.ids
        assert other.ids != alone.ids and unseeded.ids != alone.ids


async def test_the_token_that_stops_is_in_the_ids(served):
    async with trainer_of(served.url) as trainer:
        await fresh(served, trainer)
        free = await served.complete(trainer, prompt_of(6), 20, temperature=0)
        stop = free.ids[3]
        asked = {"temperature": 0, "stop_token_ids": [stop]}
        stopped = await served.complete(trainer, prompt_of(6), 20, **asked)
        assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
        assert stopped.choice["finish_reason"] == "stop"
        ended = await served.complete(trainer, prompt_of(6), 900, temperature=20)  # nearly uniform
        assert ended.choice["finish_reason"] == "stop" and ended.ids[-1] in ENDS
        assert not set(ENDS) & set(ended.ids[:-1])


# --- weights -------------------------------------------------------------------------------------


async def test_each_update_is_served_until_the_next_is_live(served):
    """The server takes turns with its memory, also after updates that fail or that it has to cast."""
    ids = prompt_of(20)
    async with trainer_of(served.url) as trainer:
        live = await fresh(served, trainer)
        for version, (seed, dtype, spoilt) in enumerate(UPDATES, 2):
            model = llama(seed)
            weights = {name: p.detach().to(dtype) for name, p in model.named_parameters()}
            model.load_state_dict(weights, strict=False)  # as the dtype rounds them
            if spoilt:
                weights[spoilt] = weights[spoilt].fill_(torch.nan)
            ended = await trainer.publish(version, weights, tied={}, bucket_bytes=1 << 14)
            assert (ended["state"], ended["touched"]) == (("failed", False) if spoilt else ("live", True))
            live = live if spoilt else model
            _, body = await trainer.post("/score", {"sequences": [ids]})
            with torch.no_grad():
                log_p = live(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
            expected = log_p.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            assert body["logprobs"][0] == pytest.approx(expected.tolist(), abs=1e-4)
            if spoilt:
                assert (await trainer.join())[0] == 200


# --- the server ----------------------------------------------------------------------------------


async def test_a_full_cache_delays_requests_and_changes_nothing(tmp_path):
    """16 blocks hold 512 tokens; 8 requests of 180 want 1440. Requests are put back and read again."""
    model = qwen2(0)
    make_tiny_model(tmp_path)
    model.save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path), "float32", "cpu", max_batch_tokens=64, num_blocks=16)
    await engine.start(3)
    try:
        asked = [run_to_end(engine, prompt_of(30, seed=i), 150) for i in range(8)]
        for i, (ids, logprob, versions, reason) in enumerate(await asyncio.gather(*asked)):
            content = [{"logprob": x} for x in logprob]
            choice = {"token_ids": ids, "logprobs": {"content": content}}
            choice["weight_versions"] = [{"version": 3, "start": 0, "end": len(versions)}]
            answer = Sampled(prompt_of(30, seed=i), choice)
            assert set(versions) == {3} and answer.error(model, 0.5).max() < 1e-4
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
        tasks = [asyncio.create_task(run_to_end(engine, prompt_of(30, seed=i), 400)) for i in range(6)]
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


@pytest.mark.parametrize("spoil", ["not a model directory", "no chat template"])
async def test_a_model_that_cannot_be_served_is_one_line(tmp_path, monkeypatch, spoil):
    path = Path(make_tiny_model(tmp_path))
    if spoil == "not a model directory":
        path = Path(tmp_path, "nothing")
    else:
        (path / "chat_template.jinja").unlink()
    monkeypatch.setattr("sys.argv", ["transformers", "--model", str(path), "--port", "0"])
    with pytest.raises(SystemExit, match="^cannot serve: [^\n]*$") as ended:
        main()
    assert str(path) in ended.value.code and spoil in ended.value.code
