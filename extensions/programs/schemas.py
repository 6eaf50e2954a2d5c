"""The schemas of data sets of programs. Each turns a row into a problem with tests, or says why it cannot."""

import ast
import base64
import binascii
import builtins
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from contracts.support.messages import one_line
from extensions.programs.tasks import MOST_TESTS, ProgramTask, Test, decoded

MOST_BYTES = 64 << 20  # of tests that are compressed
LONGEST_OUTPUT = 1 << 16  # bytes
LONGEST_TASK = 8 << 20  # bytes
DETAIL = 100  # characters
PYTHON = ("python", "python3", "py")


class UnfitError(Exception):
    """The row cannot be used. The message is the reason, which is counted. detail: more about this row."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason)
        self.detail = detail


class CodeProblem(NamedTuple):
    """problem_id: as the row has it, or ""."""

    problem_id: str
    statement: str
    task: ProgramTask


class _NoClasses(pickle.Unpickler):
    """Reads a pickle of text alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnfitError("with a pickle that names a class")


def own(row: Mapping[str, Any]) -> CodeProblem:
    """Reads problem_id, statement, mode, entry, compare, public, and tests of input and expected."""
    mode = row.get("mode") or ("function" if row.get("entry") else "stdin")
    compare = row.get("compare") or ("json" if mode == "function" else "lines")
    tests = [_test(test["input"], test["expected"], mode) for test in row["tests"]]
    public = 1 if row.get("public") is None else row["public"]
    return _problem(row.get("problem_id"), row["statement"], tests, row.get("entry"), compare, mode, public)


def taco(row: Mapping[str, Any]) -> CodeProblem:
    """Reads question, starter_code, and input_output with inputs, outputs and fn_name. APPS has the same."""
    given = _json(row.get("input_output")) or {"inputs": [], "outputs": []}
    entry = given.get("fn_name")
    mode = "function" if entry else "stdin"
    pairs = zip(given["inputs"], given["outputs"], strict=True)
    if entry:
        pairs = ((_lines_as_arguments(one), json.dumps(other)) for one, other in pairs)
    tests = [_test(one, other, mode) for one, other in pairs]
    statement = _with_starter(row["question"], row.get("starter_code"))
    return _problem(row.get("id"), statement, tests, entry, "wrapped" if entry else "floats")


def livecodebench(row: Mapping[str, Any]) -> CodeProblem:
    """Reads question_content, starter_code, public and private test cases, and metadata with func_name."""
    public = _json(row.get("public_test_cases") or "[]")
    cases = [*public, *_private(row.get("private_test_cases"))]
    is_function = any(case.get("testtype") == "functional" for case in cases)
    entry = (_json(row.get("metadata") or "{}") or {}).get("func_name") if is_function else None
    if is_function and not entry:
        raise UnfitError("with tests of a function that has no name")
    mode = "function" if entry else "stdin"
    tests = [
        _test(_lines_as_arguments(case["input"]) if entry else case["input"], case["output"], mode)
        for case in cases
    ]
    statement = _with_starter(row["question_content"], row.get("starter_code"))
    compare = "json" if entry else "floats"
    return _problem(row.get("question_id"), statement, tests, entry, compare, public=len(public) or 1)


def humaneval(row: Mapping[str, Any]) -> CodeProblem:
    """Reads prompt, entry_point, and test, a function of assertions about `candidate`."""
    tests = _assertions(row["test"], "candidate")
    return _problem(row.get("task_id"), row["prompt"], tests, row["entry_point"], "json")


def mbpp(row: Mapping[str, Any]) -> CodeProblem:
    """Reads text or prompt, and test_list, assertions about one function."""
    source = "\n".join(row["test_list"])
    names = {node.func.id for node in ast.walk(ast.parse(source)) if _is_call(node)}
    names = {name for name in names if not hasattr(builtins, name)}
    if len(names) != 1:
        raise UnfitError("with tests that call more than one function")
    (entry,) = names
    statement = f"{row.get('text') or row['prompt']}\n\nName the function `{entry}`."
    return _problem(row.get("task_id"), statement, _assertions(source, entry), entry, "json")


def genesys(row: Mapping[str, Any]) -> CodeProblem:
    """Reads prompt, and verification_info with language and test_cases of type, input, output, fn_name."""
    given = _json(row["verification_info"])
    if str(given.get("language", "python")).lower() not in PYTHON:
        raise UnfitError("in another language")
    cases = given["test_cases"]
    entry = cases[0].get("fn_name") if cases else None
    mode = "function" if entry else "stdin"
    tests = [_test(case["input"], case["output"], mode) for case in cases]
    statement = row.get("prompt") or row["problem_statement"]
    return _problem(row.get("problem_id"), statement, tests, entry, "wrapped" if entry else "floats")


SCHEMAS: dict[str, Callable[[Mapping[str, Any]], CodeProblem]] = {
    "own": own,
    "made": own,
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
    except msgspec.ValidationError as error:
        raise UnfitError(f"with an option that is none: {error}") from error
    except Exception as error:  # of any kind: a row may hold anything
        raise UnfitError(f"unreadable ({type(error).__name__})", one_line(error)[:DETAIL]) from error


def _problem(
    problem_id: Any,
    statement: str,
    tests: Sequence[Test],
    entry: str | None,
    compare: str,
    mode: str = "",
    public: int = 1,
) -> CodeProblem:
    if not statement.strip():
        raise UnfitError("without a statement")
    if not tests:
        raise UnfitError("without tests")
    first: dict[str, str] = {}
    if any(first.setdefault(test.input, test.expected).strip() != test.expected.strip() for test in tests):
        raise UnfitError("with tests that contradict each other")
    if isinstance(public, bool) or not isinstance(public, int) or not 0 <= public <= len(tests):
        raise UnfitError("with a number of public tests that is none")
    shown = min(public, MOST_TESTS)
    chosen = [*tests[:shown], *drawn(tests[shown:], MOST_TESTS - shown)]
    if any(_printed_bytes(test.expected, compare) > LONGEST_OUTPUT for test in chosen):
        raise UnfitError("with an output that is too long")
    task = ProgramTask(chosen, mode or ("function" if entry else "stdin"), entry, compare, shown)
    encoded = task.encoded()
    if len(encoded) > LONGEST_TASK:
        raise UnfitError("with tests that are too large")
    decoded(encoded)  # which checks the types
    return CodeProblem("" if problem_id is None else str(problem_id), statement, task)


def _printed_bytes(expected: str, compare: str) -> int:
    """Returns the bytes that a right program prints for this, in the form of Python."""
    is_json = compare in ("json", "wrapped")
    return len((json.dumps(json.loads(expected)) if is_json else expected + "\n").encode())


def drawn(tests: Sequence[Test], most: int) -> list[Test]:
    """Returns at most as many tests: evenly spaced, always the same ones."""
    if len(tests) <= most:
        return list(tests)
    return [tests[len(tests) * place // most] for place in range(most)]


def _json(value: Any) -> Any:
    """Returns the value of JSON, or of a literal of Python, in text; None if the text is empty."""
    if not isinstance(value, str | bytes):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except ValueError:
        return ast.literal_eval(value)


def _test(given: Any, expected: Any, mode: str) -> Test:
    """Returns a test of these values: text for standard input and output, JSON for a function."""
    if mode != "function":
        return Test(_as_lines(given), _as_lines(expected))
    arguments = given if isinstance(given, str) else json.dumps(given)
    result = expected if isinstance(expected, str) else json.dumps(expected)
    if not isinstance(_value_of(arguments, "arguments"), list):
        raise UnfitError("with arguments that are no list")
    _value_of(result, "an expected result")
    return Test(arguments, result)


def _value_of(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnfitError(f"with {what} that is no JSON") from error


def _as_lines(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(_as_lines, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnfitError("with an input or output that is no text")
    return str(value)


def _with_starter(statement: str, starter: str | None) -> str:
    return f"{statement}\n\n```python\n{starter.strip()}\n```" if (starter or "").strip() else statement


def _lines_as_arguments(value: Any) -> Any:
    """Returns the list of arguments that are the lines of a text, each in JSON."""
    if not isinstance(value, str):
        return value
    return [json.loads(line) for line in value.splitlines() if line.strip()]


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
        expected = json.dumps(ast.literal_eval(condition.comparators[0]))
        survives = repr(json.loads(json.dumps(arguments))) == repr(arguments)
    except (ValueError, TypeError):
        return None
    return Test(json.dumps(arguments) if survives else repr(arguments), expected)


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
