"""Data sets of each schema become problems, whose right, wrong and slow answers are told apart."""

import asyncio
import base64
import collections
import json
import pickle
import subprocess
import sys
import zlib

import pytest

from extensions.programs.domain import Code
from extensions.programs.schemas import SCHEMAS, UnfitError, problem_of
from extensions.programs.sources import source_of
from extensions.programs.tasks import Test
from pipelinerl.launcher.composing.compose import compose_config
from tests.extensions.programs.test_corpora import verifier

ROWS = 50
SLOW = "import time\ntime.sleep(10**6)\n"
STDIN = "print(int(input()) + {by})\n"
FUNCTION = "def add(x):\n    return x + {by}\n"


def cases(by):
    return [(x, x + by) for x in (1, 10)]


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def own(by):
    return {"problem_id": f"p{by}", "statement": f"Add {by}.", "tests": [
        {"input": str(x), "expected": str(y)} for x, y in cases(by)]}  # fmt: skip


def taco(by):
    given = {"inputs": [[x] for x, _ in cases(by)], "outputs": [[y] for _, y in cases(by)], "fn_name": "add"}
    return {"question": f"Add {by}.", "starter_code": "def add(x):", "input_output": json.dumps(given)}


def apps(by):
    given = {"inputs": [f"{x}\n" for x, _ in cases(by)], "outputs": [f"{y}\n" for _, y in cases(by)]}
    return {"question": f"Add {by}.", "starter_code": "", "input_output": json.dumps(given)}


def livecodebench(by):
    tests = [{"input": str(x), "output": str(y), "testtype": "functional"} for x, y in cases(by)]
    metadata = json.dumps({"func_name": "add"})
    return {"question_content": f"Add {by}.", "question_id": by, "starter_code": "", "metadata": metadata,
            "public_test_cases": json.dumps(tests[:1]), "private_test_cases": packed(tests[1:])}  # fmt: skip


def humaneval(by):
    lines = "".join(f"    assert candidate({x}) == {y}\n" for x, y in cases(by))
    return {"task_id": f"T/{by}", "prompt": f'def add(x):\n    """Adds {by}."""\n', "entry_point": "add",
            "test": f"def check(candidate):\n{lines}    assert candidate.__name__\n"}  # fmt: skip


def mbpp(by):
    return {
        "task_id": by,
        "text": f"Add {by}.",
        "test_list": [f"assert add({x}) == {y}" for x, y in cases(by)],
    }


def genesys(by):
    tests = [{"type": "stdin_stdout", "input": f"{x}\n", "output": f"{y}\n"} for x, y in cases(by)]
    info = json.dumps({"language": "python", "test_cases": tests})
    return {"problem_id": str(by), "prompt": f"Add {by}.", "verification_info": info}


MADE = {make.__name__: make for make in (own, taco, apps, livecodebench, humaneval, mbpp, genesys)}


def written(tmp_path, schema, suffix=".jsonl", rows=None):
    path = tmp_path / f"{schema}{suffix}"
    rows = [MADE[schema](by) for by in range(ROWS)] if rows is None else rows
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def domain(path, schema, heldout=None, **options):
    sources = {
        "mine": {"path": str(path), "schema": schema},
        "other": {"path": str(heldout or path), "schema": schema},
    }
    given = {"train": ["mine"], "heldout": ["other"], "system_prompt": None, "programs": {}} | options
    return Code(sources=sources, **given)


def test_every_schema_is_tried():
    assert MADE.keys() == SCHEMAS.keys() - {"made"}


@pytest.mark.parametrize("schema", MADE)
def test_answers_to_each_row_are_told_apart(tmp_path, schema):
    problems = domain(written(tmp_path, schema), schema)
    assert problems.heldout_size == ROWS
    row = problem_of(schema, MADE[schema](3))
    source = FUNCTION if row.task.mode == "function" else STDIN

    async def judged():
        async with verifier(cpu_s=1.0) as judge:

            async def outcome(task, text):
                return (await judge.judged(task, f"```python\n{text}```")).outcome

            tasks = [problems.heldout_problem(by).data for by in range(ROWS)]
            right = [await outcome(task, source.format(by=by)) for by, task in enumerate(tasks)]
            return right, await outcome(tasks[0], source.format(by=7)), await outcome(tasks[0], SLOW)

    assert asyncio.run(judged()) == (["right"] * ROWS, "wrong", "undecided:time")


ANSWERS = ("{right}", "{wrong}", "{right}raise SystemExit(3)\n", "def {right}")
CALL = "\nimport json\nprint(json.dumps({entry}(*json.loads(input()))))\n"


def plainly(task, source):
    """Returns the verdict of a plain interpreter."""
    source += CALL.format(entry=task.entry) if task.entry else ""
    for test in task.tests:
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, input=test.input, capture_output=True, text=True)
        if done.returncode or done.stdout.strip() != test.expected:
            return "wrong"
    return "right"


@pytest.mark.long
@pytest.mark.parametrize("schema", ["own", "humaneval"])
def test_verdicts_are_those_of_a_plain_interpreter(schema):
    form = STDIN if schema == "own" else FUNCTION
    sources = [
        (by, answer.format(right=form.format(by=by), wrong=form.format(by=by % 2)))
        for by in range(ROWS // 2)
        for answer in ANSWERS
    ]
    tasks = [problem_of(schema, MADE[schema](by)).task for by, _ in sources]

    async def judged():
        async with verifier() as judge:
            texts = [f"```python\n{source}```" for _, source in sources]
            pairs = zip(tasks, texts, strict=True)
            return [(await judge.judged(task.encoded(), text)).outcome for task, text in pairs]

    expected = [plainly(task, source) for task, (_, source) in zip(tasks, sources, strict=True)]
    assert asyncio.run(judged()) == expected
    assert len(expected) == 100 and 25 <= expected.count("right") < 50


def test_a_parquet_file_has_the_same_problems(tmp_path):
    in_json = domain(written(tmp_path, "own"), "own").heldout_problem(4)
    assert domain(written(tmp_path, "own", ".parquet"), "own").heldout_problem(4) == in_json


def one_test(**test):
    return own(1) | {"tests": [{"input": "1", "expected": "1"} | test]}


UNFIT = {
    "without tests": own(1) | {"tests": []},
    "without a statement": own(1) | {"statement": " "},
    "without statement": {"tests": []},
    "with tests that contradict each other": own(1)
    | {"tests": [{"input": "1", "expected": str(n)} for n in (1, 2)]},
    "unreadable (TypeError)": own(1) | {"tests": 3},
    "with an option that is none: Invalid enum value 'stdio' - at `$.mode`": own(1) | {"mode": "stdio"},
    "with an option that is none: Invalid enum value 'exact' - at `$.compare`": own(1) | {"compare": "exact"},
    "with an input or output that is no text": one_test(input=None),
    "with an output that is too long": one_test(expected="1\n" * 40_000),
    "with an expected result that is no JSON": one_test(input="[1]", expected="abc") | {"entry": "f"},
    "with arguments that are no list": one_test(input="5") | {"entry": "f"},
    "with the statement of an earlier row": own(2),
    "with a number of public tests that is none": own(1) | {"public": 3},
    "unreadable (ValueError)": own(1) | {"mode": "function", "tests": [{"input": "[1]", "expected": "1"}]},
}


@pytest.mark.parametrize("reason", UNFIT)
def test_a_row_that_cannot_be_used_is_counted_by_its_reason(tmp_path, reason):
    found = domain(
        written(tmp_path, "own", rows=[own(2), UNFIT[reason]]),
        "own",
        written(tmp_path, "mbpp", rows=[own(5)]),
    )
    (first, *_) = found.plan_notes()
    assert first.startswith(f"mine: 1 problems; left out: 1 {reason} (row 2")


@pytest.mark.parametrize("value", [pickle.dumps(collections.Counter), pickle.dumps(print)])
def test_a_pickle_that_names_a_class_is_refused(value):
    row = livecodebench(1) | {"private_test_cases": base64.b64encode(zlib.compress(value)).decode()}
    with pytest.raises(UnfitError, match="a pickle that names a class"):
        problem_of("livecodebench", row)


def test_data_sets_that_differ_in_form_are_read():
    odd = json.dumps({"inputs": ["[1, 2]\n3"], "outputs": [[4]], "fn_name": "f"})
    assert problem_of("taco", taco(1) | {"input_output": odd}).task.tests == [Test("[[1, 2], 3]", "[4]")]
    python = str({"language": "python", "test_cases": [{"input": "1", "output": "1"}]})
    assert problem_of("genesys", genesys(1) | {"verification_info": python}).task.mode == "stdin"
    of_stdin = [{"input": "1", "output": "2", "testtype": "stdin"}]
    row = livecodebench(1) | {"public_test_cases": json.dumps(of_stdin), "private_test_cases": ""}
    assert problem_of("livecodebench", row).task.mode == "stdin"
    keyed = mbpp(1) | {"test_list": ["assert has({1: 2}, (3,)) == True"]}
    assert problem_of("mbpp", keyed).task.tests == [Test("[{1: 2}, (3,)]", "true")]
    with pytest.raises(UnfitError, match="UnicodeEncodeError"):
        problem_of("apps", apps(1) | {"input_output": odd.replace("[4]", '["\\ud800"]').replace("f", "g")})
    with pytest.raises(UnfitError, match="without tests"):
        problem_of("apps", apps(1) | {"input_output": ""})


@pytest.mark.parametrize("value", ["no base64!", base64.b64encode(b"no zlib").decode(), packed([])[:-8]])
def test_damaged_tests_are_unreadable(value):
    with pytest.raises(UnfitError, match="unreadable"):
        problem_of("livecodebench", livecodebench(1) | {"private_test_cases": value})


def test_training_problems_that_are_held_out_are_left_out(tmp_path):
    every = written(tmp_path, "own")
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(own(by)) + "\n" for by in range(10)))
    found = domain(every, "own", few)
    assert (found.train_size, found.heldout_size) == (ROWS - 10, 10)
    assert list(found.plan_notes())[0] == f"mine: {ROWS - 10} problems; left out: 10 held out"
    with pytest.raises(ValueError, match="every training problem is held out too"):
        _ = domain(every, "own").train_size


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "x.jsonl"}, "sources.mine needs schema"),
        ({"path": "x.jsonl", "schema": "taca"}, "there are own, made, taco"),
        ({"path": "x.jsonl", "schema": "own", "splt": "a"}, "no field 'splt'"),
        ({"path": "mine.json", "schema": "own"}, "convert it to one of .jsonl, .parquet"),
        ({"path": __file__, "schema": "own"}, "name a file of .jsonl, .parquet"),
    ],
)
def test_wrong_sources_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        source_of("mine", options)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "it is empty"),
        ("{}\n", r"no row of .* can be used: 1 without tests \(row 1\)"),
        ("x\n", "line 1 of .* is no JSON object"),
    ],
)
def test_a_file_without_problems_is_refused(tmp_path, content, says):
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=says):
        _ = domain(path, "own").heldout_size


def test_wrong_limits_are_refused_before_the_start(tmp_path):
    with pytest.raises(ValueError, match="submission_cpu_s=30.0 is less than cpu_s=50"):
        domain(tmp_path, "own", programs={"cpu_s": 50})
    with pytest.raises(TypeError, match="cpu_ss"):
        domain(tmp_path, "own", programs={"cpu_ss": 1})


def test_the_shipped_choice_is_complete():
    config = compose_config(["domain=code", "inference=scripted", "trainer=scripted"])
    assert config.domain.target == "extensions.programs.domain.Code"
