"""The schemas of data sets of programs. Each turns a row into a problem with tests, or says why it cannot."""

import ast
import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from extensions.programs.tasks import MOST_TESTS, ProgramTask, Test

MOST_BYTES = 64 << 20  # of tests that are compressed
PYTHON = ("python", "python3", "py")


class UnfitError(Exception):
    """The row cannot be used. The message is the reason, which is counted."""


class CodeProblem(NamedTuple):
    """problem_id: as the row has it, or ""."""

    problem_id: str
    statement: str
    task: ProgramTask


class _NoClasses(pickle.Unpickler):
    """Reads a pickle of text alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnfitError("a pickle that names a class")


def own(row: Mapping[str, Any]) -> CodeProblem:
    """problem_id, statement, mode, entry, compare, tests of input and expected."""
    mode = row.get("mode") or ("function" if row.get("entry") else "stdin")
    compare = row.get("compare") or ("json" if mode == "function" else "lines")
    tests = [Test(_as_text(test["input"], mode), _as_text(test["expected"], mode)) for test in row["tests"]]
    return _problem(row.get("problem_id"), row["statement"], tests, mode, row.get("entry"), compare)


def taco(row: Mapping[str, Any]) -> CodeProblem:
    """question, starter_code, input_output with inputs, outputs and fn_name. APPS has the same."""
    given = _json(row.get("input_output"))
    entry = given.get("fn_name")
    mode = "function" if entry else "stdin"
    outputs = [_joined(each) if mode == "stdin" else json.dumps(each) for each in given["outputs"]]
    inputs = [_joined(each) if mode == "stdin" else json.dumps(each) for each in given["inputs"]]
    tests = [Test(*pair) for pair in zip(inputs, outputs, strict=True)]
    statement = _with_starter(row["question"], row.get("starter_code"))
    return _problem(row.get("id"), statement, tests, mode, entry, "wrapped" if entry else "lines")


def livecodebench(row: Mapping[str, Any]) -> CodeProblem:
    """question_content, starter_code, public and private test cases, metadata with func_name."""
    cases = [*_json(row.get("public_test_cases") or "[]"), *_private(row.get("private_test_cases"))]
    entry = _json(row.get("metadata") or "{}").get("func_name")
    mode = "function" if entry else "stdin"
    tests = [
        Test(_lines_as_arguments(case["input"]) if entry else case["input"], case["output"]) for case in cases
    ]
    statement = _with_starter(row["question_content"], row.get("starter_code"))
    return _problem(row.get("question_id"), statement, tests, mode, entry, "json" if entry else "lines")


def humaneval(row: Mapping[str, Any]) -> CodeProblem:
    """prompt, entry_point, and test, a function of assertions about `candidate`."""
    tests = _assertions(row["test"], "candidate")
    return _problem(row.get("task_id"), row["prompt"], tests, "function", row["entry_point"], "json")


def mbpp(row: Mapping[str, Any]) -> CodeProblem:
    """text or prompt, and test_list, assertions about one function."""
    source = "\n".join(row["test_list"])
    names = {node.func.id for node in ast.walk(ast.parse(source)) if _is_call(node)}
    names -= {"set", "sorted", "list", "tuple", "abs", "round", "len", "str", "float", "int"}
    if len(names) != 1:
        raise UnfitError("its tests call more than one function")
    (entry,) = names
    statement = f"{row.get('text') or row['prompt']}\n\nName the function `{entry}`."
    return _problem(row.get("task_id"), statement, _assertions(source, entry), "function", entry, "json")


def genesys(row: Mapping[str, Any]) -> CodeProblem:
    """prompt, verification_info with language and test_cases of type, input, output and fn_name."""
    given = _json(row["verification_info"])
    if str(given.get("language", "python")).lower() not in PYTHON:
        raise UnfitError("another language")
    cases = given["test_cases"]
    entry = cases[0].get("fn_name") if cases else None
    mode = "function" if entry else "stdin"
    tests = [Test(_as_text(case["input"], mode), _as_text(case["output"], mode)) for case in cases]
    return _problem(row.get("problem_id"), row["prompt"], tests, mode, entry, "wrapped" if entry else "lines")


SCHEMAS: dict[str, Callable[[Mapping[str, Any]], CodeProblem]] = {
    "own": own,
    "taco": taco,
    "apps": taco,
    "livecodebench": livecodebench,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "genesys": genesys,
}


def problem_of(schema: str, row: Mapping[str, Any]) -> CodeProblem:
    """Returns the row's problem. Raises UnfitError with the reason why it has none."""
    try:
        return SCHEMAS[schema](row)
    except UnfitError:
        raise
    except KeyError as error:
        raise UnfitError(f"without {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError, SyntaxError, zlib.error, pickle.UnpicklingError) as error:
        raise UnfitError("unreadable") from error


def _problem(
    problem_id: Any, statement: str, tests: Sequence[Test], mode: str, entry: str | None, compare: str
) -> CodeProblem:
    if not statement.strip():
        raise UnfitError("without a statement")
    if not tests:
        raise UnfitError("without tests")
    first: dict[str, str] = {}
    if any(first.setdefault(test.input, test.expected) != test.expected for test in tests):
        raise UnfitError("with tests that contradict each other")
    chosen = drawn(tests)
    return CodeProblem(str(problem_id or ""), statement, ProgramTask(chosen, mode, entry, compare))


def drawn(tests: Sequence[Test]) -> list[Test]:
    """Returns at most as many tests as a task may have: evenly spaced, always the same ones."""
    if len(tests) <= MOST_TESTS:
        return list(tests)
    return [tests[len(tests) * place // MOST_TESTS] for place in range(MOST_TESTS)]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else value


def _joined(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _as_text(value: Any, mode: str) -> str:
    if mode == "stdin" or isinstance(value, str):
        return _joined(value)
    return json.dumps(value)


def _with_starter(statement: str, starter: str | None) -> str:
    return f"{statement}\n\n```python\n{starter.strip()}\n```" if (starter or "").strip() else statement


def _lines_as_arguments(text: str) -> str:
    return json.dumps([json.loads(line) for line in text.splitlines() if line.strip()])


def _private(value: str | None) -> list[dict[str, str]]:
    """Returns the private tests: JSON, or JSON in a pickle that is compressed and in base64."""
    if not value:
        return []
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(base64.b64decode(value, validate=True), MOST_BYTES)
    except binascii.Error as error:
        raise UnfitError("unreadable") from error
    if unpacking.unconsumed_tail:
        raise UnfitError("with tests that are too large")
    return json.loads(_NoClasses(io.BytesIO(packed)).load())


def _assertions(source: str, function: str) -> list[Test]:
    """Returns the tests in assertions that a call of literals equals a literal. Others are left out."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert) and (test := _as_test(node.test, function)):
            found.append(test)
    if not found:
        raise UnfitError("without an assertion of literals")
    return found


def _as_test(condition: ast.expr, function: str) -> Test | None:
    is_equation = isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.Eq)
    if not is_equation or len(condition.ops) > 1 or not _is_call(condition.left):
        return None
    call = condition.left
    if call.func.id != function or call.keywords:
        return None
    try:
        arguments = [ast.literal_eval(argument) for argument in call.args]
        return Test(json.dumps(arguments), json.dumps(ast.literal_eval(condition.comparators[0])))
    except (ValueError, TypeError):
        return None


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
