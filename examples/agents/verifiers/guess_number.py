"""An environment of `verifiers`: a number is found from "higher" and "lower"."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI

openai = AsyncOpenAI(base_url="http://endpoint", api_key="key")  # its connections serve all attempts


class Number(vf.TaskData):
    number: int = 0


class FindNumber(vf.Task[Number]):
    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.number))

    @vf.metric
    async def guesses(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class NumbersConfig(vf.TasksetConfig):
    highest: int = 1024


class Numbers(vf.Taskset[FindNumber, NumbersConfig]):
    def load(self) -> Iterator[FindNumber]:
        for number in range(1, self.config.highest + 1):
            yield FindNumber(
                Number(number=number, prompt=f"Guess: 1 to {self.config.highest}"), self.config.task
            )


class Guesser(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Number,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        client = openai.with_options(base_url=endpoint, api_key=secret)
        messages: list[Any] = [{"role": "user", "content": data.prompt}]
        for _ in range(11):
            answer = await client.chat.completions.create(model=ctx.model, messages=messages)
            said = answer.choices[0].message.content.strip()
            if not said.isdecimal() or int(said) == data.number:
                break
            reply = "higher" if int(said) < data.number else "lower"
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
        return vf.ProgramResult(0, "", "")


__all__ = ["Guesser", "Numbers"]
