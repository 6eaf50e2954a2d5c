"""Demonstrations: the forms of a line, what an attempt is, and what a broken file is told."""

import asyncio
import json
from pathlib import Path

import pytest

from contracts.records import Completion, unsampled
from pipelinerl.domains.base import Attempt, ChatClient, Problem
from pipelinerl.domains.demonstrations import Demonstrations
from pipelinerl.domains.mixture import Mixture
from tests.scripted_domain import ScriptedDomain

USER = {"role": "user", "content": "2+2"}
MESSAGES = {"messages": [USER, {"role": "assistant", "content": "4"}]}
PAIR = {"prompt": [USER], "chosen": "4", "rejected": "5"}
TOKENS = {"prompt_token_ids": [5, 6], "token_ids": [7, 1], "problem_id": "four"}
TOKEN_PAIR = {"prompt_token_ids": [5, 6], "chosen_token_ids": [7, 1], "rejected_token_ids": [8, 9, 1]}


class Letters:
    """A client that has a token for each character."""

    async def completion_of(self, messages: list[dict[str, str]], answer: str) -> Completion:
        return unsampled([ord(letter) for letter in messages[-1]["content"]], [ord(a) for a in answer])


def written(directory: Path, *lines: dict | str) -> str:
    path = directory / "answers.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def domain_of(directory: Path, *lines: dict | str) -> Demonstrations:
    return Demonstrations(ScriptedDomain(seed=0), written(directory, *lines))


def attempt(domain: Demonstrations, problem: Problem, client: ChatClient | None = None) -> Attempt:
    return asyncio.run(domain.rollout(client or Letters(), problem))


def tokens(made: Attempt) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in made.completions]


def test_an_answer_as_text_is_encoded_by_the_client(tmp_path):
    domain = domain_of(tmp_path, MESSAGES)
    problem = domain.train_problem(0)
    assert (domain.train_size, domain.demonstrated) == (1, 1)
    assert (problem.problem_id, problem.messages, problem.domain) == ("answers/0", [USER], "answers")
    made = attempt(domain, problem)
    assert tokens(made) == [[ord("4")]]
    assert made.completions[0].prompt_token_ids.tolist() == [ord(c) for c in "2+2"]
    assert (made.reward, made.turn_rewards, made.success) == (1.0, [1.0], True)


def test_an_answer_as_token_ids_stays_as_it_is(tmp_path):
    domain = domain_of(tmp_path, TOKENS)
    made = attempt(domain, domain.train_problem(0))
    assert domain.train_problem(0).problem_id == "four"
    (completion,) = made.completions
    assert (completion.prompt_token_ids.tolist(), completion.token_ids.tolist()) == ([5, 6], [7, 1])
    assert completion.spans == [] and len(completion.logprobs) == 0


@pytest.mark.parametrize(
    ("line", "expected"), [(PAIR, [[ord("4")], [ord("5")]]), (TOKEN_PAIR, [[7, 1], [8, 9, 1]])]
)
def test_the_preferred_answer_comes_first(tmp_path, line, expected):
    domain = domain_of(tmp_path, line)
    made = attempt(domain, domain.train_problem(0))
    assert domain.demonstrated == 2
    assert tokens(made) == expected
    assert (made.reward, made.turn_rewards) == (0.0, [1.0, -1.0])


def test_held_out_problems_are_those_of_the_inner_domain(tmp_path):
    inner = ScriptedDomain(seed=0)
    domain = domain_of(tmp_path, TOKENS)
    assert domain.heldout_size == inner.heldout_size
    assert domain.heldout_problem(3).problem_id == inner.heldout_problem(3).problem_id


TWO = {"role": "user", "content": "and?"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "has no demonstration"),
        (["{"], "line 1: Input data was truncated"),
        ([MESSAGES, {"messages": [USER]}], "line 2: messages are a conversation, and the last one"),
        ([{"messages": [MESSAGES["messages"][1], TWO]}], "line 1: messages are a conversation"),
        ([{"messages": [{"role": "user"}, MESSAGES["messages"][1]]}], "a message has a role and a content"),
        ([{"messages": [{"role": "user", "text": "2+2"}, MESSAGES["messages"][1]]}], "line 1: a message has"),
        ([{"prompt": [USER], "chosen": "4"}], "line 1: it has none of the forms messages | prompt_token_ids"),
        ([{**PAIR, **TOKENS}], "none of the forms"),
        ([{**PAIR, "prompt": []}], "prompt has no message"),
        ([{**TOKENS, "token_ids": []}], "token_ids must be token ids, one at least"),
        ([{**TOKENS, "prompt_token_ids": [-1]}], "prompt_token_ids must be token ids"),
        ([{**TOKENS, "token_ids": ["7"]}], "line 1: Expected `int`"),
        ([{**PAIR, "rejected": "4"}], "line 1: both answers are the same"),
        ([{**PAIR, "rejected": ""}], "line 1: an answer is empty"),
        (["[", "]"], "is one array: write a JSON object on each line"),
        ([PAIR, "", "{"], "line 3: Input data was truncated"),
        ([{**PAIR, "chosen": [USER]}], "at `$.chosen`; docs/demonstrations.md has the forms"),
        ([PAIR, PAIR, MESSAGES], "row 3 has 1 answer(s), and row 1 2"),
    ],
)
def test_a_broken_file_is_told_where(tmp_path, lines, words):
    with pytest.raises(ValueError, match="answers.jsonl") as refusal:
        domain_of(tmp_path, *lines)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(MESSAGES), encoding="utf-8-sig")
    assert Demonstrations(ScriptedDomain(seed=0), str(path)).train_size == 1


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="path is needed"):
        Demonstrations(ScriptedDomain(seed=0), None)
    with pytest.raises(ValueError, match="is no file of demonstrations"):
        Demonstrations(ScriptedDomain(seed=0), str(tmp_path / "absent.jsonl"))


def test_a_mixture_has_no_demonstrations(tmp_path):
    with pytest.raises(ValueError, match="a mixture cannot have demonstrations"):
        Mixture({"sampled": ScriptedDomain(seed=0), "answers": domain_of(tmp_path, TOKENS)})
