"""The domain over local files in the shapes that the hub's data sets have."""

import datetime
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from extensions.math.domain import Math
from pipelinerl.components import build_domain
from pipelinerl.domains.mixture import Mixture
from pipelinerl.domains.subset import Subset
from pipelinerl.domains.target_length import TargetLength
from pipelinerl.judging.wire import Judgement
from pipelinerl.launcher.composing.compose import compose_config
from tests.extensions.reasoning_gym.test_reasoning_gym import Says

REWARDS = {"right": 1.0, "wrong": -0.5, "no_answer": -1.0, "undecided": 0.0}


def parquet(path: Path, rows: list[dict]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def conversation(problem: str, answer: str) -> dict:
    """As Open-Reasoner-Zero has them."""
    return {
        "0": {"from": "human", "value": problem},
        "1": {"from": "assistant", "ground_truth": {"value": answer}},
    }


@pytest.fixture
def sources(tmp_path):
    return {
        "talks": {
            "path": parquet(
                tmp_path / "orz.parquet", [conversation(f"{i} + 1?", str(i + 1)) for i in range(9)]
            ),
            "problem": "0.value",
            "answer": "1.ground_truth.value",
        },
        "solved": {
            "path": jsonl(
                tmp_path / "gsm.jsonl",
                [
                    {"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"},
                    {"question": "?", "answer": "4"},
                ],
            ),
            "problem": "question",
            "answer_pattern": "#### (.*)",
        },
        "exam": {
            "path": jsonl(
                tmp_path / "exam.jsonl", [{"problem": f"{i} + 1?", "answer": i + 1} for i in (3, 30)]
            ),
        },
    }


def domain(sources, train=("talks",), heldout=("exam",), **changes) -> Math:
    options = {"system_prompt": "Box it.", "rewards": REWARDS} | changes
    return Math(train=list(train), heldout=list(heldout), sources=sources, **options)


def test_fields_are_mapped_and_nested_ones_found(sources):
    problem = domain(sources).train_problem(1)
    assert problem.messages == [
        {"role": "system", "content": "Box it."},
        {"role": "user", "content": "1 + 1?"},
    ]
    assert (problem.problem_id, problem.data, problem.domain) == ("talks/1", "2", "talks")
    assert [m["role"] for m in domain(sources, system_prompt=None).train_problem(0).messages] == ["user"]


def test_values_are_the_text_that_stands_in_the_file(sources, tmp_path):
    written = ['"007"', "1e-05", "3.10", "12345678901234567890123", "[1, 2]", '"2020-01-01"', "true", "null"]
    lines = [f'{{"problem": "{number}?", "answer": {value}}}' for number, value in enumerate(written)]
    for name, content in (("a.jsonl", "\ufeff" + "\r\n\n".join(lines)), ("a.json", f"[{','.join(lines)}]")):
        (tmp_path / name).write_text(content)
        math = domain(sources | {"mine": {"path": str(tmp_path / name)}}, train=["mine"])
        answers = [math.train_problem(index).data for index in range(math.train_size)]
        assert answers == [value.strip('"') for value in written[:-1]]


ASKED = {"role": "user", "content": "2+2?"}
OWN = [{"role": "system", "content": "Be brief."}, ASKED]


@pytest.mark.parametrize("write", [parquet, jsonl])
@pytest.mark.parametrize(
    ("row", "fields", "roles"),
    [
        (
            {"prompt": [ASKED], "reward_model": {"ground_truth": "4"}},
            ("prompt", "reward_model.ground_truth"),
            "su",
        ),
        ({"prompt": OWN, "solution": "4"}, ("prompt", "solution"), "su"),
        (
            {"talk": {"messages": [ASKED, {"role": "assistant", "content": "?"}, ASKED]}, "a": 4},
            ("talk.messages", "a"),
            "suau",
        ),
    ],
)
def test_messages_are_asked_as_they_are(sources, tmp_path, write, row, fields, roles):
    mine = dict(
        zip(
            ("path", "problem", "answer"),
            (write(tmp_path / f"m.{write.__name__}", [row]), *fields),
            strict=True,
        )
    )
    problem = domain(sources | {"mine": mine}, train=["mine"]).train_problem(0)
    assert "".join(message["role"][0] for message in problem.messages) == roles
    assert (problem.messages[-1], problem.data) == (ASKED, "4")
    assert problem.messages[0]["content"] == ("Be brief." if "solution" in row else "Box it.")


def test_what_is_left_out_is_counted_and_the_longest_problems_are_known(sources, tmp_path):
    rows = [("a", "1"), ("b", "2"), ("a", "1"), ("b", "3"), ("longest", "4"), ("c", None), ("30 + 1?", "31")]
    path = jsonl(
        tmp_path / "mine.jsonl", [{"problem": problem, "answer": answer} for problem, answer in rows]
    )
    math = domain(sources | {"mine": {"path": path}}, train=["mine"])
    assert [math.train_problem(index).problem_id for index in range(math.train_size)] == [
        "mine/0",
        "mine/2",
        "mine/4",
    ]
    assert math.longest_problems(1) == [2]
    (of_train,) = [note for note in math.plan_notes() if note.startswith("mine")]
    assert of_train == (
        "mine: 3 problems; left out: 2 with another answer to the same problem; "
        "left out: 1 without a problem or an answer; left out: 1 held out"
    )
    before = math.digest()
    jsonl(tmp_path / "mine.jsonl", [{"problem": problem, "answer": answer} for problem, answer in rows[:3]])
    assert domain(sources | {"mine": {"path": path}}, train=["mine"]).digest() != before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "mine: .*a.jsonl has no row"),
        ("a.json", b"[]", "mine: .*a.json has no row"),
        (
            "a.jsonl",
            b'{"problem": "1?", "answer": 1}\n{"problem": "2?"',
            "mine: .*a.jsonl, line 2: .*truncated",
        ),
        (
            "a.jsonl",
            '{"problem": "1?", "answer": 1}\n{"problem": "é?"}'.encode("latin-1"),
            "a.jsonl, line 2: .*UTF-8",
        ),
        ("a.json", '[{"problem": "1?", "answer": 1}]'.encode("utf-16"), "a.json, line 1: .*UTF-8"),
        (
            "a.csv",
            b"problem,answer\n1?,1",
            "sources.mine.path=.*a.csv is a file of another format; .*.parquet",
        ),
        (
            "a.jsonl",
            b'{"problem": ["1?"], "answer": 1}',
            "mine: row 1: the field problem is a list of no messages",
        ),
        (
            "a.jsonl",
            b'{"problem": [{"role": "assistant", "content": "!"}], "answer": 1}',
            "mine: row 1: .* do not end with the user's turn",
        ),
        ("a.jsonl", b'["1?", 1]', "mine: .*a.jsonl.*Expected `object`"),
        (
            "a.jsonl",
            b'{"problem": [{"from": "human", "value": "1?"}], "answer": 1}',
            "mine: row 1: the field problem has a message without a role or a content",
        ),
        (
            "a.jsonl",
            b'{"problem": "1?", "answer": {"ground_truth": 1}}',
            "row 1: .*answer is a list or a record",
        ),
        (
            "a.jsonl",
            b'{"problem": "1?", "answer": ["1", "2"]}',
            "row 1: .*point sources.mine.answer at another",
        ),
        ("a.parquet", b"problem", "mine: .*a.parquet could not be read"),
    ],
)
def test_a_file_that_cannot_be_read_as_it_says_is_refused_by_its_place(
    sources, tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        domain(sources | {"mine": {"path": str(tmp_path / name)}}, train=["mine"]).train_size  # noqa: B018


@pytest.mark.parametrize("answer", [datetime.date(2020, 1, 1), [1, 2], True])
def test_a_column_of_other_values_than_text_and_numbers_is_refused_by_its_name(sources, tmp_path, answer):
    path = parquet(tmp_path / "a.parquet", [{"problem": "1?", "answer": answer}])
    with pytest.raises(
        ValueError, match="mine: the field answer is .*, and no text or number; point sources.mine"
    ):
        domain(sources | {"mine": {"path": path}}, train=["mine"]).train_size  # noqa: B018


@pytest.mark.parametrize("kind", [pyarrow.float16(), pyarrow.float32(), pyarrow.float64()])
def test_a_fraction_is_read_as_it_was_written_and_nan_is_no_answer(sources, tmp_path, kind):
    answers = pyarrow.array([0.1, float("nan"), 33.3], kind, from_pandas=False)
    path = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"problem": ["1?", "2?", "3?"], "answer": answers}), path)
    math = domain(sources | {"mine": {"path": path}}, train=["mine"])
    assert [math.train_problem(index).data for index in range(math.train_size)] == ["0.1", "33.3"]


def test_an_answer_is_cut_out_and_rows_without_one_are_left_out(sources):
    math = domain(sources, train=["solved"])
    assert math.train_size == 1 and math.train_problem(0).data == "4"


def test_what_is_held_out_is_not_trained_on(sources):
    math = domain(sources, train=["talks", "solved"])
    messages = [math.train_problem(i).messages[1]["content"] for i in range(math.train_size)]
    assert messages == [f"{i} + 1?" for i in range(9) if i != 3] + ["Two and two?"]


def test_held_out_sets_come_in_turn(sources):
    math = domain(sources, train=["talks"], heldout=["exam", "solved"])
    assert [math.heldout_problem(i).problem_id for i in range(math.heldout_size)] == [
        "exam/0",
        "solved/0",
        "exam/1",
    ]


@pytest.mark.asyncio
async def test_an_outcome_is_worth_what_the_table_says(sources):
    math = domain(sources)
    problem = math.heldout_problem(0)
    for text, outcome, why in [
        (r"It is \boxed{\frac{8}{2}}.", "right", []),
        (r"\boxed{5}", "wrong", []),
        ("It is 4.", "no_answer", []),
        (rf"\boxed{{{'1+' * 10000}1}}", "undecided", ["judged_undecided_length"]),
    ]:
        attempt = await math.rollout(Says(math, text), problem)
        assert attempt.reward == REWARDS[outcome] and attempt.success == (outcome == "right")
        assert {name for name, count in attempt.metrics.items() if count} == {f"judged_{outcome}", *why}


class Forges(Says):
    async def judged(self, verifier, task, text):
        return Judgement(9.0, True, text)


@pytest.mark.asyncio
async def test_an_outcome_that_the_table_does_not_have_is_undecided(sources):
    math = domain(sources)
    attempt = await math.rollout(Forges(math, "forged"), math.heldout_problem(0))
    assert attempt.reward == REWARDS["undecided"] and attempt.metrics["judged_undecided"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": ["nowhere"]}, "no source 'nowhere'; there are talks, solved, exam"),
        (
            {"rewards": {"right": 1.0}},
            "rewards must give each of right, wrong, no_answer, undecided a number",
        ),
        (
            {"sources": {"exam": {"path": "a.json", "field": "x"}}},
            "sources.exam: no field 'field'; there are path",
        ),
        ({"judge": {"timeout_s": 600.0}}, "domain.judge has moved to judging, .* judging.verdict_s"),
        ({"sources": {"exam": {"problem": "x"}}}, "sources.exam needs a path"),
        (
            {"sources": {"exam": {"path": "a.json", "answer_pattern": "#(.*"}}},
            "sources.exam.answer_pattern=.* is no regular expression: missing",
        ),
        (
            {"sources": {"exam": {"path": "org/exam", "made_by": "tests.extensions.math.made.exam"}}},
            "sources.exam.made_by makes a local file, and org/exam is none",
        ),
    ],
)
def test_a_misspelt_option_is_named(sources, change, message):
    with pytest.raises(ValueError, match=message):
        domain(**{"sources": sources, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "gone.jsonl"}, "exam: there is no file /.*gone.jsonl"),
        (
            {"problem": "question"},
            "exam: sources.exam.problem=question is no field of it; there are problem, answer",
        ),
        ({"answer_pattern": "#(.*)"}, "exam has no row .* used: 2 without a problem or an answer"),
    ],
)
def test_data_that_cannot_be_used_is_one_clear_line(sources, change, message):
    sources["exam"] |= change
    with pytest.raises(ValueError, match=message):
        domain(sources).heldout_size  # noqa: B018


def test_a_data_set_that_is_not_here_says_what_to_do(sources, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    sources["exam"]["path"] = "nobody/nothing"
    with pytest.raises(
        ValueError, match="exam: nobody/nothing is not in the cache .* run once with a network"
    ):
        domain(sources).heldout_size  # noqa: B018


def make_exam(path: Path) -> None:
    jsonl(path, [{"problem": "2 + 2?", "answer": 4}])


def test_a_file_that_is_missing_is_made_once_and_not_for_a_plan(sources, tmp_path):
    path = tmp_path / "made.jsonl"
    sources["exam"] |= {"path": str(path), "made_by": f"{__name__}.make_exam"}
    assert domain(sources).fetches and not path.exists()
    assert domain(sources).heldout_problem(0).data == "4"
    assert not domain(sources).fetches
    jsonl(path, [{"problem": "3 + 3?", "answer": 6}])
    assert domain(sources).heldout_problem(0).data == "6"


def subset(math: Math, folder: Path) -> Subset:
    messages = [{"role": "system", "content": "Box it."}, {"role": "user", "content": "0 + 1?"}]
    first = {"index": 0, "problem_id": "talks/0", "messages": messages, "success": 0.5}
    return Subset(math, jsonl(folder / "list", [first]))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda math, _: Mixture({"math": math}),
        lambda math, _: TargetLength(math, [10], "{prompt} {length}"),
        subset,
    ],
)
def test_a_domain_around_it_fetches_no_sooner(sources, tmp_path, wrapped):
    path = tmp_path / "made.jsonl"
    sources["exam"] |= {"path": str(path), "made_by": f"{__name__}.make_exam"}
    around = wrapped(domain(sources), tmp_path)
    assert around.fetches and not path.exists()
    assert around.train_size and around.heldout_size == 1
    assert path.exists() and not around.fetches


def test_the_shipped_configuration_is_built_without_its_data():
    math = build_domain(compose_config(["domain=math"]))
    assert math.fetches and math.name == "math"
