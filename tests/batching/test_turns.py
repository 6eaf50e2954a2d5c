"""Several turns with the real server: calls of tools are read in each."""

import asyncio

from extensions.demo.domains.calculator import TOOL
from inference_adapters.scripted import ScriptedEngine
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.conversations.base import Conversation, Parsed
from pipelinerl.conversations.thoughts import parsed
from pipelinerl.domains.base import Answer
from tests.inference_adapters.servers import serving, wait_ready

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'


def test_every_turn_reads_a_call_alike():
    """A chat is answered with calls; prompts of token ids, in the first turn and later, with text."""
    with serving("tests.inference_adapters.echo_engine") as server:
        wait_ready(server.url)
        answers = asyncio.run(told_to_call(server.url))
    for answer in answers:
        (call,) = answer.tool_calls
        assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "1 + 1"}')
        assert answer.text == "So: " and answer.completion.finish_reason == "stop"
        assert len(answer.completion.token_ids) == len(f"So: {CALL}") + 1


class Echoed:
    """Conversations of the echo engine, whose answer is its prompt: each prompt is the last message."""

    def render(self, conversation) -> list[int]:
        return ScriptedEngine().encode(conversation.messages[-1]["content"])

    def parse(self, asked, completion, text) -> Parsed:
        return parsed(ScriptedEngine().decode(completion.token_ids.tolist()), False, bool(asked.tools))

    def extend(self, asked, completion, answer, messages) -> list[int]:
        return self.render(Conversation(messages))


async def told_to_call(url: str) -> list[Answer]:
    messages = [{"role": "user", "content": f"So: {CALL}"}]
    pool = ServerPool(limit=1)
    await pool.set_servers([url])
    async with open_session(token=None) as session:
        answers = []
        for conversations in (None, Echoed()):  # a server parses, or the client
            sampling = Sampling("scripted", 1.0, 200)
            client = LLMClient(session, pool, sampling, conversations=conversations)
            answers.append(await client.chat(messages, tools=[TOOL]))
        answers.append(await client.chat(messages, after=answers[-1], tools=[TOOL]))
        return answers
