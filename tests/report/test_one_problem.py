"""One problem and its answers, as the console and the last lines show them."""

import pytest
from tokenizers import Tokenizer

from contracts.records import VersionSpan
from pipelinerl.paths import ROOT
from pipelinerl.report.one_problem import OneProblem
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout

MODEL = ROOT / "extensions" / "demo" / "checkpoints" / "sums"
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def attempt(version: int, problem: str, answer: str, success: float, number: int = 0, **more):
    prompt, ids = (TOKENIZER.encode(text, add_special_tokens=False).ids for text in (problem, answer))
    sampled = completion(prompt, ids, spans=[VersionSpan(version, 0, len(ids))])
    name = f"eval-{version}-{len(problem)}-{number}"
    return rollout(0, completions=[sampled], rollout_id=name, problem_id=problem, success=success, **more)


@pytest.fixture
def writer(tmp_path):
    return FileStreams(tmp_path / "streams").writer("eval_rollouts")


@pytest.fixture
def problem(tmp_path, writer):
    return OneProblem(FileStreams(tmp_path / "streams"), MODEL)


def test_the_first_problem_that_was_wrong_is_followed_to_its_newest_answer(problem, writer):
    problem.read()
    assert problem.newest() is None
    writer.append(attempt(0, "1 + 1 =", "2", 1.0, expected="2"))
    writer.append(attempt(0, "3 + 10 =", "7", 0.0, expected="13"))
    problem.read()
    assert problem.newest() == problem.change() == "3 + 10 = (right: 13): “7” is wrong, by version 0"
    writer.append(attempt(4, "3 + 10 =", "12", 0.0, number=1, expected="13"))
    writer.append(attempt(4, "3 + 10 =", "13", 1.0, expected="13"))
    writer.append(attempt(4, "1 + 1 =", "3", 0.0, expected="2"))
    problem.read()
    assert problem.newest() == "3 + 10 = (right: 13): “13” is right, by version 4"
    assert problem.change() == (
        "3 + 10 = (right: 13): “7” is wrong, by version 0; “13” is right, by version 4"
    )


def test_a_run_without_a_tokenizer_shows_none(tmp_path, writer):
    writer.append(attempt(0, "1 + 1 =", "3", 0.0))
    without = OneProblem(FileStreams(tmp_path / "streams"), tmp_path)
    without.read()
    assert without.change() is None
