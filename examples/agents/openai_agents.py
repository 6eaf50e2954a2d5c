"""An agent of OpenAI's Agents SDK with a calculator, started once for each attempt, in its own environment.

    python -m venv .venv-agents && .venv-agents/bin/pip install openai-agents==0.24.0

The task is a line {"id", "question", "expected"} of a file; a verifier compares its answer.
"""

import json
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def calculator(expression: str) -> str:
    """The value of an arithmetic expression of numbers, + - * / and parentheses."""
    return str(eval(expression, {"__builtins__": {}}))


set_tracing_disabled(True)
task = json.load(sys.stdin)["task"]
model = OpenAIChatCompletionsModel("policy", AsyncOpenAI())
agent = Agent(name="calculator", instructions="Use the calculator.", model=model, tools=[calculator])
run = Runner.run_sync(agent, task["question"], max_turns=4)
with open(os.environ["RESULT"], "w") as file:
    json.dump({"answer": run.final_output}, file)
