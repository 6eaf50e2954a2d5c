"""Agents of four frameworks and of plain openai, which have a calculator. It serves: a line is an attempt.

Run in an environment of its own (frameworks.txt). A task is {"framework", "streams", "question"}.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import OpenAIModel, ToolCallingAgent, tool

TURNS = 3
NUMBER = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
set_tracing_disabled(True)


def calculator(expression: str) -> str:
    """The value of an arithmetic expression of numbers, + - * / and parentheses."""
    try:
        return str(int(eval(expression, {"__builtins__": {}})))
    except Exception as error:
        return f"error: {type(error).__name__}"


FUNCTION = {"name": "calculator", "description": calculator.__doc__, "parameters": NUMBER}


def plain(url: str, key: str, question: str, streams: bool) -> str:
    client = OpenAI(base_url=url, api_key=key)
    messages = [{"role": "user", "content": question}]
    request = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}
    for _ in range(TURNS):
        if streams:
            with client.chat.completions.stream(**request) as stream:
                for _ in stream:
                    pass
                answer = stream.get_final_completion().choices[0].message
        else:
            answer = client.chat.completions.create(**request).choices[0].message
        messages.append(answer)
        if not answer.tool_calls:
            return answer.content
        for call in answer.tool_calls:
            result = calculator(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


async def openai_agents(url: str, key: str, question: str, streams: bool) -> str:
    model = OpenAIChatCompletionsModel("policy", AsyncOpenAI(base_url=url, api_key=key))
    agent = Agent(name="agent", model=model, tools=[function_tool(calculator)])
    if not streams:
        return (await Runner.run(agent, question, max_turns=TURNS)).final_output
    run = Runner.run_streamed(agent, question, max_turns=TURNS)
    async for _ in run.stream_events():
        pass
    return run.final_output


async def pydantic_ai(url: str, key: str, question: str, streams: bool) -> str:
    agent = PydanticAgent(OpenAIChatModel("policy", provider=OpenAIProvider(base_url=url, api_key=key)))
    agent.tool_plain(calculator)
    if not streams:
        return (await agent.run(question)).output
    async with agent.run_stream(question) as run:
        return await run.get_output()


async def langgraph(url: str, key: str, question: str, streams: bool) -> str:
    model = ChatOpenAI(model="policy", base_url=url, api_key=key, streaming=streams)
    agent = create_react_agent(model, [calculator])
    return (await agent.ainvoke({"messages": [("user", question)]}))["messages"][-1].content


@tool
def documented_calculator(expression: str) -> str:
    """The value of an arithmetic expression.

    Args:
        expression: the expression
    """
    return calculator(expression)


def smolagents(url: str, key: str, question: str, streams: bool) -> str:
    model = OpenAIModel(model_id="policy", api_base=url, api_key=key)
    agent = ToolCallingAgent(
        [documented_calculator], model, max_steps=2, verbosity_level=0, stream_outputs=streams
    )
    return str(agent.run(question))


FRAMEWORKS: dict[str, Callable] = {
    each.__name__: each for each in (plain, openai_agents, pydantic_ai, langgraph, smolagents)
}


async def attempt(line: dict) -> None:
    task = line["task"]
    run = FRAMEWORKS[task["framework"]]
    given = (line["base_url"], line["api_key"], task["question"], task["streams"])
    try:
        said = await (run(*given) if asyncio.iscoroutinefunction(run) else asyncio.to_thread(run, *given))
        end = {"result": {"answer": said}}
    except Exception as error:
        end = {"error": f"{type(error).__name__}: {error}"}
    os.write(1, json.dumps({"id": line["id"], **end}).encode() + b"\n")


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        while line := await asyncio.to_thread(sys.stdin.readline):
            given = json.loads(line)
            if "task" in given:
                group.create_task(attempt(given))


if __name__ == "__main__":
    asyncio.run(main())
