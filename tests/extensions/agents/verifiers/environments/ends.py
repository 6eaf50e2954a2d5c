"""Tasks whose episodes end in different ways, each after an answer."""

import asyncio

import verifiers.v1 as vf
from openai import AsyncOpenAI

ENDS = ["scored", "raises", "sandbox", "late", "exits", "twice"]


class Data(vf.TaskData):
    end: str = ""


class EndTask(vf.Task[Data]):
    @vf.reward
    async def half(self) -> float:
        if self.data.end == "raises":
            raise RuntimeError("no reward today")
        return 0.5

    @vf.metric
    async def odd(self) -> float:
        return float("nan")


class Ends(vf.Taskset[EndTask]):
    def load(self):
        for end in ENDS:
            timeout = vf.TaskTimeout(agent=0.5 if end == "late" else None)
            yield EndTask(Data(end=end, prompt="begin", timeout=timeout), self.config.task)


class Program(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        client = AsyncOpenAI(base_url=endpoint, api_key=secret)
        message = {"role": "user", "content": data.prompt}
        await client.chat.completions.create(model=ctx.model, messages=[message])
        if data.end == "sandbox":
            raise vf.SandboxError("the box is gone")
        if data.end == "late":
            await asyncio.Event().wait()
        return vf.ProgramResult(7 if data.end == "exits" else 0, "", "the program's own words")


class Plays(vf.SingleAgentEnv):
    async def run(self, task, agents):
        for _ in range(2 if task.data.end == "twice" else 1):
            await agents.agent.run(task)


__all__ = ["Ends", "Plays", "Program"]
