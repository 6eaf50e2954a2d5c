"""Domain: arithmetic with numbers of several digits, with a calculator as a tool.

A tool call ends a turn. The next message is its result or error. The first answer without a call is judged.
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

    digits: number of digits of each number in a problem.
    prompt: template of the question, in which {expression} is replaced.
    turns: maximum number of the model's answers, including the judged one.
    train_size, heldout_size: numbers of problems. A problem depends only on its index.
    seed: ignored.
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
        """Returns the attempt. Metrics: turns (answers), tool_calls and tool_errors (failed calls)."""
        answers = [await client.chat(problem.messages, tools=problem.tools)]
        errors = 0
        while answers[-1].tool_calls and len(answers) < self._turns:
            results = [result_of(call) for call in answers[-1].tool_calls]
            errors += sum(result["content"].startswith("error") for result in results)
            answers.append(await client.chat(results, after=answers[-1], tools=problem.tools))
        found = answer_in(answers[-1])
        success = found is not None and Decimal(found) == problem.data
        return Attempt(
            completions=[answer.completion for answer in answers],
            reward=float(success),
            success=success,
            reason=f"last number {found}" if found else "the last turn has no number",
            metrics={
                "turns": float(len(answers)),
                "tool_calls": float(sum(len(answer.tool_calls) for answer in answers)),
                "tool_errors": float(errors),
            },
        )

    def _problem(self, index: int, heldout: bool) -> Problem:
        """Draws expressions until one is on the wanted side of the training and held-out split."""
        drawn = random.Random(f"{self.name} {heldout} {index}")
        expression = self._expression(drawn)
        while is_held_out(expression) != heldout:
            expression = self._expression(drawn)
        question = self._prompt.replace("{expression}", expression)
        side = "heldout" if heldout else "train"
        opening = [{"role": "user", "content": question}]
        value = calculate(expression)
        return Problem(f"{self.name}/{side}/{index}", opening, int(value), tools=[TOOL], expected=value)

    def _expression(self, drawn: random.Random) -> str:
        form = drawn.choice(FORMS)
        lowest = 10 ** (self._digits - 1)
        return form.format(*(drawn.randrange(lowest, 10 * lowest) for _ in range(form.count("{}"))))


def is_held_out(expression: str) -> bool:
    return blake2b(expression.encode(), digest_size=1).digest()[0] % HELDOUT_ONE_IN == 0


def result_of(call: ToolCall) -> dict[str, str]:
    """Returns the message that answers a call: the value, or an error if the call is invalid."""
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


def answer_in(answer: Answer) -> str | None:
    """Returns the last number of an answer, or None if it has none or calls a tool."""
    numbers = NUMBER.findall(answer.text)
    return numbers[-1].replace(",", "") if numbers and not answer.tool_calls else None
