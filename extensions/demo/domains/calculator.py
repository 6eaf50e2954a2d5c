"""A domain of long arithmetic, with a calculator as a tool.

A tool call ends a turn; its result or error is the next message. The first answer without a call is judged.
"""

import json
import random
import re
from decimal import Decimal
from hashlib import blake2b

from contracts.tool_calls import ToolCall
from extensions.demo.domains.arithmetic import calculate
from pipelinerl.domains.base import Answer, Attempt, ChatClient, Domain, Problem

HELDOUT_ONE_IN = 4
FORMS = ["{} * {}", "{} + {} + {}", "{} * {} + {}", "{} * {} - {}", "({} + {}) * {}"]
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "The value of an arithmetic expression of numbers, + - * / and parentheses.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


class Calculator(Domain):
    """Expressions to evaluate. An answer is right if its last number is the expression's value.

    digits: the number of digits of each number in a problem.
    prompt: template of the question; {expression} is the expression.
    turns: largest number of answers of the model, including tool calls.
    train_size, heldout_size: numbers of problems; a problem depends only on its index.
    seed: the run's seed; not used.
    """

    name = "calculator"
    needs = frozenset({"tools"})

    def __init__(
        self, digits: int, prompt: str, turns: int, train_size: int, heldout_size: int, seed: int = 0
    ):
        if digits < 2 or turns < 2:
            raise ValueError(f"digits={digits}, turns={turns}: both must be at least 2")
        if "{expression}" not in prompt:
            raise ValueError(f"prompt {prompt!r} does not contain {{expression}}")
        self._digits = digits
        self._prompt = prompt
        self._turns = turns
        self.train_size = train_size
        self.heldout_size = heldout_size

    def train_problem(self, index: int) -> Problem:
        return self._problem(index, heldout=False)

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(index, heldout=True)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        """Returns the attempt. Metrics: turns (number of answers), tool_calls, tool_errors (failed calls)."""
        answers = [await client.chat(problem.messages, tools=problem.tools)]
        errors = 0
        while answers[-1].tool_calls and len(answers) < self._turns:
            results = [result_of(call) for call in answers[-1].tool_calls]
            errors += sum(result["content"].startswith("error") for result in results)
            answers.append(await client.chat(results, after=answers[-1], tools=problem.tools))
        success = judged(answers[-1], problem.data)
        return Attempt(
            completions=[answer.completion for answer in answers],
            reward=float(success),
            success=success,
            metrics={
                "turns": float(len(answers)),
                "tool_calls": float(sum(len(answer.tool_calls) for answer in answers)),
                "tool_errors": float(errors),
            },
        )

    def _problem(self, index: int, heldout: bool) -> Problem:
        """Returns a problem whose expression is held out or not, which a hash of the expression decides."""
        drawn = random.Random(f"{self.name} {heldout} {index}")
        expression = self._expression(drawn)
        while is_held_out(expression) != heldout:
            expression = self._expression(drawn)
        question = self._prompt.replace("{expression}", expression)
        side = "heldout" if heldout else "train"
        opening = [{"role": "user", "content": question}]
        return Problem(f"{self.name}/{side}/{index}", opening, int(calculate(expression)), tools=[TOOL])

    def _expression(self, drawn: random.Random) -> str:
        form = drawn.choice(FORMS)
        lowest = 10 ** (self._digits - 1)
        return form.format(*(drawn.randrange(lowest, 10 * lowest) for _ in range(form.count("{}"))))


def is_held_out(expression: str) -> bool:
    return blake2b(expression.encode(), digest_size=1).digest()[0] % HELDOUT_ONE_IN == 0


def result_of(call: ToolCall) -> dict[str, str]:
    """Returns the message that answers a call: the value, or an error for an invalid call."""
    try:
        content = calculate(_expression_of(call))
    except ValueError as error:
        content = f"error: {error}"
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def _expression_of(call: ToolCall) -> str:
    if call.function.name != TOOL["function"]["name"]:
        raise ValueError("the only tool is calculator")
    try:
        arguments = json.loads(call.function.arguments)
    except RecursionError as error:
        raise ValueError("the arguments are nested too deeply") from error
    if not isinstance(arguments, dict) or not isinstance(arguments.get("expression"), str):
        raise ValueError('the arguments must be {"expression": "..."}')
    return arguments["expression"]


def judged(answer: Answer, value: int) -> bool:
    numbers = NUMBER.findall(answer.text)
    return not answer.tool_calls and bool(numbers) and Decimal(numbers[-1].replace(",", "")) == value
