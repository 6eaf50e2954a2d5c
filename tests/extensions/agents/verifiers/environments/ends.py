"""Tasks whose episodes end in different ways, each after an answer."""

import asyncio
import sys

import verifiers.v1 as vf
from openai import AsyncOpenAI

ENDS = ["scored", "raises", "judge", "infinite", "exits", "long", "sandbox", "unwritten", "late", "fails"]
ENDS += ["twice", "much", "reads"]


class RateLimitError(Exception):
    """As that of openai."""


class Data(vf.TaskData):
    end: str = ""


class EndTask(vf.Task[Data]):
    @vf.reward
    async def half(self, runtime) -> float:
        match self.data.end:
            case "raises":
                raise RuntimeError("no reward today")
            case "judge":
                raise RateLimitError("status 429")
            case "long":
                raise ValueError("é" * 300_000)
            case "infinite":
                return float("inf")
            case "unwritten":
                await runtime.read("answer.txt", 100)
            case "exits":
                sys.exit("not authenticated")
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
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        message = {"role": "user", "content": data.prompt}
        await client.chat.completions.create(model=ctx.model, messages=[message])
        if data.end == "sandbox":
            raise vf.SandboxError("the box is gone")
        if data.end == "late":
            await asyncio.Event().wait()
        if data.end == "much":
            message["content"] = "word " * 10_000
            await client.chat.completions.create(model=ctx.model, messages=[message])
        if data.end == "reads":
            return await runtime.run(["sh", "-c", "read line && exit 7 || exit 0"], {})
        return vf.ProgramResult(7 if data.end == "fails" else 0, "", "the program's own words")


class Plays(vf.SingleAgentEnv):
    async def run(self, task, agents):
        for _ in range(2 if task.data.end == "twice" else 1):
            await agents.agent.run(task)


__all__ = ["Ends", "Plays", "Program"]
