import asyncio
import json

import pytest

from contracts.tool_calls import FunctionCall, ToolCall
from extensions.demo.domains.arithmetic import calculate
from extensions.demo.domains.calculator import TOOL, Calculator, answer_in
from pipelinerl.domains.base import Answer
from pipelinerl.domains.mixture import Mixture
from pipelinerl.domains.subset import Selection
from pipelinerl.domains.target_length import TargetLength
from tests.builders import completion

PROMPT = "What is {expression}?"


def domain(**options) -> Calculator:
    return Calculator(
        **{"digits": 6, "prompt": PROMPT, "turns": 4, "train_size": 300, "heldout_size": 100} | options
    )


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("123456 * 987654 + 1", "121931812225"),
        (" (2 - 5) * -3 / 9 ", "1"),
        ("7 / 2", "3.5"),
        ("2 / 3", "0.666666666666667"),
        ("9" * 60 + " + 1", "1" + "0" * 60),
        ("1_000", "1000"),
    ],
)
def test_values(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "(", "1 +", "x", "9**9**9", "2 ** 3", "1 << 99", "9 // 2", "9 % 2", "True", "1j", "'a' * 9",
        "__import__('os').abort()", "(lambda: 1)()", "[1] * 9", "1 if 1 else 2", "1 / 0", "1e999", "1, 2",
        "1e308 * 9", "9" * 201, "*".join(["9" * 99] * 9), "(" * 200, "\0", "\ud800", "1\n+ 1",
        "f'{1}'", "print(1)",
    ],
)  # fmt: skip
def test_all_else_is_refused(expression):
    """What would be computed without an end is refused before it is."""
    with pytest.raises(ValueError):
        calculate(expression)


class Says:
    """Gives these answers in turn: a text, or the calls of tools; notes what it is sent."""

    before_calls = ""

    def __init__(self, *answers: str | list[FunctionCall]):
        self._answers, self.sent = list(answers), []

    async def chat(self, messages, after=None, tools=None):
        assert tools == [TOOL] and (after is None) == (not self.sent)
        self.sent.append(messages)
        text = self._answers.pop(0)
        if isinstance(text, str):
            return Answer(text, completion([1], [2]))
        calls = [ToolCall(id=f"{len(self.sent)}-{i}", function=call) for i, call in enumerate(text)]
        return Answer(self.before_calls, completion([1], [2]), calls)


def call(arguments: object, name: str = "calculator") -> FunctionCall:
    return FunctionCall(name=name, arguments=json.dumps(arguments))


def attempt(client: Says, **options):
    made = domain(**options)
    return asyncio.run(made.rollout(client, made.train_problem(0)))


def test_results_come_back_and_the_answer_is_judged():
    value = domain().train_problem(0).data
    client = Says([call({"expression": "1 + 2"}), call({"expression": "2 * 3"})], f"It is {value:,}.")
    ended = attempt(client)
    assert ended.success and ended.reward == 1.0 and len(ended.completions) == 2
    assert ended.metrics == {"turns": 2.0, "tool_calls": 2.0, "tool_errors": 0.0}
    assert client.sent[1] == [
        {"role": "tool", "tool_call_id": "1-0", "content": "3"},
        {"role": "tool", "tool_call_id": "1-1", "content": "6"},
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [("It is 1,579.", "1579"), ("1579.00", "1579.00"), ("so 0.1579", "0.1579"), ("none", None)],
)
def test_the_last_number_counts(text, found):
    assert answer_in(Answer(text, None)) == found


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (call({"expression": "9**9**9"}), "error: only numbers"),
        (call({"expression": 3}), "error: the arguments must be"),
        (call("1 + 1"), "error: the arguments must be"),
        (call({"expression": "1"}, name="search"), "error: the only tool is calculator"),
        (FunctionCall(name="calculator", arguments="{"), "error: "),
    ],
)
def test_a_wrong_call_is_told_so_and_costs_a_turn(wrong, says):
    client = Says([wrong], str(domain().train_problem(0).data))
    ended = attempt(client)
    assert ended.success and ended.metrics["tool_errors"] == 1.0
    assert client.sent[1][0]["content"].startswith(says)


def test_who_never_answers_fails():
    value = domain().train_problem(0).data
    client = Says(*[[call({"expression": "1"})]] * 3)
    client.before_calls = f"It is {value}, or is it?"
    forever = attempt(client, turns=3)
    assert not forever.success and forever.metrics == {"turns": 3.0, "tool_calls": 3.0, "tool_errors": 0.0}
    for text in ("", "I do not know", str(value + 1), f"{value} or 7", f"{value}0"):
        assert not attempt(Says(text)).success


def test_problems_are_the_same_each_time_and_none_is_on_both_sides():
    one, other = domain(digits=2, seed=1), domain(digits=2, seed=2)
    train = [one.train_problem(i) for i in range(2000)]
    heldout = [one.heldout_problem(i) for i in range(2000)]
    assert train[:300] == [other.train_problem(i) for i in range(300)]
    questions = [{p.messages[0]["content"] for p in side} for side in (train, heldout)]
    assert not questions[0] & questions[1] and min(map(len, questions)) > 1800
    for problem in train:
        expression = problem.messages[0]["content"].removeprefix("What is ").removesuffix("?")
        assert int(calculate(expression)) == problem.data and problem.tools == [TOOL]


@pytest.mark.parametrize(
    ("options", "says"), [({"turns": 1}, "turns=1"), ({"digits": 1}, "digits=1"), ({"prompt": "?"}, "prompt")]
)
def test_bad_options(options, says):
    with pytest.raises(ValueError, match=says):
        domain(**options)


def test_what_is_made_of_it_needs_tools_and_has_them():
    made = domain()
    wrapped = [
        Selection(made, range(5)),
        TargetLength(made, [4], "{length} {prompt}"),
        Mixture({"easy": Selection(made, range(5)), "hard": made}),
    ]
    for other in wrapped:
        assert other.needs == {"tools"} and other.train_problem(0).tools == [TOOL]
        assert other.heldout_problem(0).tools == [TOOL]
