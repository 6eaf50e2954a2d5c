"""Several turns with the real server: calls of tools are read in each."""

import asyncio

from extensions.demo.domains.calculator import TOOL
from inference_adapters.scripted import ScriptedEngine
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.domains.base import Answer
from tests.inference_adapters.servers import serving, wait_ready

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'


def test_every_turn_reads_a_call_alike():
    """The first is answered as a chat, with calls; the second, whose prompt is token ids, with text."""
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
        special = False

        def prompt_of_special(self, messages, tools):
            return ScriptedEngine().encode(f"As text. {CALL}") if self.special else None

        def prompt_after(self, completion, messages, calls):
            return ScriptedEngine().encode(messages[-1]["content"])

        def text(self, completion):
            return ScriptedEngine().decode(completion.token_ids.tolist())

    messages, pool = [{"role": "user", "content": f"So: {CALL}"}], ServerPool(limit=1)
    await pool.set_servers([url])
    async with open_session(token=None) as session:
        template = OnlyWhatIsNew()
        client = LLMClient(session, pool, Sampling("scripted", 1.0, 200), template=template)
        first = await client.chat(messages, tools=[TOOL])
        second = await client.chat(messages, after=first, tools=[TOOL])
        template.special = True  # then the server must not tokenize the text
        third = await client.chat(messages, tools=[TOOL])
        assert (third.text, len(third.tool_calls)) == ("As text. ", 1)
        return [first, second]
