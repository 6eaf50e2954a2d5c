"""Requests of one prompt that come together compute it once, and are answered as if each came alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from contracts.inference import SamplingParameters
from inference_adapters.transformers.batched_request import Request
from inference_adapters.transformers.engine import TransformersEngine
from tests.inference_adapters.test_transformers import error, prompt_of, qwen2

pytestmark = pytest.mark.asyncio

MEMBERS = 5
TOKENS = 40
PROMPT = prompt_of(1)


@asynccontextmanager
async def engine_of(folder: Path, num_blocks: int) -> AsyncIterator[TransformersEngine]:
    make_tiny_model(folder)
    qwen2(0).save_pretrained(folder)
    engine = TransformersEngine(str(folder), "float32", "cpu", max_batch_tokens=64, num_blocks=num_blocks)
    await engine.start(0)
    try:
        yield engine
    finally:
        await engine.close()


async def answer(
    engine: TransformersEngine, seed: int, prompt: list[int] = PROMPT
) -> tuple[list[int], list[float]]:
    ids, logprobs = [], []
    sampling = SamplingParameters(TOKENS, temperature=0.5, seed=seed)
    async for delta in engine.generate(prompt, sampling):
        ids += delta.token_ids
        logprobs += delta.logprobs
    return ids, logprobs


@pytest.mark.parametrize(
    ("num_blocks", "copies"), [(64, MEMBERS - 1), (3, None)], ids=["room", "little room"]
)
async def test_members_answer_as_alone(tmp_path, monkeypatch, num_blocks, copies):
    forked = []
    fork = Request.fork
    monkeypatch.setattr(Request, "fork", lambda self, name: forked.append(name) or fork(self, name))
    async with engine_of(tmp_path, num_blocks) as engine:
        together = await asyncio.gather(*(answer(engine, seed) for seed in range(MEMBERS)))
        assert copies is None or len(forked) == copies
        alone = [await answer(engine, seed) for seed in range(MEMBERS)]
    assert [ids for ids, _ in together] == [ids for ids, _ in alone]
    assert all(error(qwen2(0), PROMPT, ids, logprobs) < 1e-4 for ids, logprobs in together)


@pytest.mark.parametrize("looks", [1, 2, 3, 10])
async def test_the_first_may_be_called_off_while_others_wait_for_its_prompt(tmp_path, looks):
    async with engine_of(tmp_path, 64) as engine:
        first, *others = [asyncio.create_task(answer(engine, seed)) for seed in range(MEMBERS)]
        for _ in range(looks):
            await asyncio.sleep(0)
        first.cancel()
        assert all([ids for ids, _ in await asyncio.gather(*others)])


async def test_members_survive_new_weights_that_have_the_prompt_computed_again(tmp_path, monkeypatch):
    again = []
    begin = Request.create_equivalent_initial_request
    monkeypatch.setattr(
        Request,
        "create_equivalent_initial_request",
        lambda self: again.append(self.num_children) or begin(self),
    )
    async with engine_of(tmp_path, 64) as engine:
        version = 0
        while MEMBERS - 1 not in again:  # until weights came in the middle of the prompt, of five passes
            members = [asyncio.create_task(answer(engine, seed, 10 * PROMPT)) for seed in range(MEMBERS)]
            while MEMBERS - 1 not in again and not all(member.done() for member in members):
                await asyncio.sleep(0)
                version += 1
                with engine.pause_generation():
                    engine.apply_weights({}, {}, version, "recompute")
            assert all([ids for ids, _ in await asyncio.gather(*members)])
