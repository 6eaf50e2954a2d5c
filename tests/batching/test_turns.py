"""Several turns with the real server: one sequence, of the tokens that were sampled."""

import asyncio

import numpy as np

from contracts.conformance.tiny_model import make_tiny_model
from inference_adapters.scripted import ScriptedEngine
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RolloutConfig
from pipelinerl.domains.base import Answer
from pipelinerl.domains.calculator import TOOL
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from tests.inference_adapters.servers import serving, wait_ready
from tests.limits import HANG_S
from tests.talking_domain import TalkingDomain


def test_turns_are_one_sequence_of_sampled_tokens(tmp_path):
    model = tmp_path / "model"
    make_tiny_model(model)
    with serving("inference_adapters.transformers", "--model", str(model)) as server:
        wait_ready(server.url)
        rollouts = asyncio.run(attempts(server.url, str(model)))
    assert {rollout.status for rollout in rollouts} <= {"ok", "truncated"}
    for rollout in rollouts:
        assert len(rollout.completions) == 3
        (sequence,) = training_sequences(rollout, [1.0, 1.0, 1.0])
        sampled = np.concatenate([c.token_ids for c in rollout.completions])
        assert np.array_equal(sequence.token_ids[sequence.loss_mask], sampled)


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'


def test_every_turn_reads_a_call_alike():
    """The first is answered as a chat, with calls; the others with text."""
    with serving("tests.inference_adapters.echo_engine") as server:
        wait_ready(server.url)
        answers = asyncio.run(told_to_call(server.url))
    for answer in answers:
        (call,) = answer.tool_calls
        assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "1 + 1"}')
        assert answer.text == "So: " and answer.completion.finish_reason == "stop"
        assert len(answer.completion.token_ids) == len(f"So: {CALL}") + 1


async def told_to_call(url: str) -> list[Answer]:
    class OnlyWhatIsNew:
        def prompt_after(self, completion, messages):
            return ScriptedEngine().encode(messages[-1]["content"])

    messages, pool = [{"role": "user", "content": f"So: {CALL}"}], ServerPool(limit=1)
    await pool.set_servers([url])
    async with open_session(token=None) as session:
        client = LLMClient(session, pool, Sampling("scripted", 1.0, 200), template=OnlyWhatIsNew())
        first = await client.chat(messages, tools=[TOOL])
        return [first, await client.chat(messages, after=first, tools=[TOOL])]


async def attempts(url: str, model: str):
    domain, pool = TalkingDomain(seed=0), ServerPool(limit=8)
    await pool.set_servers([url])
    async with open_session(token=None) as session:
        client = LLMClient(session, pool, Sampling(model, 1.0, 6), template=ChatTemplate(model))
        attempt = RolloutRunner("r", domain, client, RolloutConfig(retries=0, timeout_s=HANG_S))
        specs = [RolloutSpec(index, f"{index}", f"{index}") for index in range(8)]
        return await asyncio.gather(*(attempt(domain.train_problem(spec.group_id), spec) for spec in specs))
