"""No test passes or fails by how fast the machine is.

What waits takes a clock that a test moves, or waits for an event, a gate file, a stopped process or a count.
Costs are counts. What remains is `tests.limits.HANG_S`, after which a test hangs.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.limits import HANG_S

TESTS = Path(__file__).parent
NOT_YET = ("conformance", "contracts", "inference_adapters", "view", "launcher", "pipeline", "engines")
# What may use time all the same, `path::function` (or `path` for a module's own lines), and why.
EXCEPTIONS: dict[str, str] = {}

CLOCKS = {
    "monotonic",
    "time",
    "perf_counter",
    "process_time",
    "thread_time",
    "monotonic_ns",
    "time_ns",
    "now",
}
LIMITS = re.compile(
    r"(?!shutdown_)(\w*_)?(timeout_s|timeout_ms|within_s|patience_s|deadline_s|grace_s|limit_s|verdict_s"
    r"|heartbeat_s|longest_s)|timeout|cpu_s"
)
IN_TEXT = re.compile(rf"\b({LIMITS.pattern})=(?P<seconds>\d+(\.\d+)?)\b")
DELAYS = re.compile(r"\b(token_delay_s|heldout_s)\b")
WAITING = {"timeout", "wait", "wait_for", "join", "communicate", "poll", "wait_procs", "settimeout"}
VIRTUAL = {"Clock", "in_virtual_time", "pass_time", "time_passes"}  # who uses them has a time of its own


def findings(source: str) -> Iterator[tuple[str, int, str]]:
    """Yields function, line and what is wrong, for each use of time that can decide a test."""
    tree = ast.parse(source)
    constants = _constants(tree)
    for function, nodes in _functions(tree):
        clocked = _clocked_names(nodes)
        polling = {inner for node in nodes if isinstance(node, ast.While) for inner in ast.walk(node)}
        if VIRTUAL & {getattr(node, "id", None) for node in nodes}:
            continue
        for node in nodes:
            if isinstance(node, ast.Compare) and _has_clock(node, clocked):
                yield function, node.lineno, "compares a clock"
            for line, number in _limits(node, constants):
                yield function, line, f"a limit of {number:g} s"
            if _is_sleep(node, constants) and node not in polling:
                yield function, node.lineno, "an order by sleeping"
            if _is_delay(node):
                yield function, node.lineno, "an order by delays"


def _functions(tree: ast.Module) -> Iterator[tuple[str, list[ast.AST]]]:
    """Yields each outermost function with all its nodes, and the module's other nodes under ""."""
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in seen:
            nodes = list(ast.walk(node))
            seen.update(nodes)
            yield node.name, nodes
    yield "", [node for node in ast.walk(tree) if node not in seen]


def _constants(tree: ast.Module) -> dict[str, float]:
    """Returns the module's numbers by name."""
    named = [node for node in tree.body if isinstance(node, ast.Assign)]
    numbers = {target.id: _number(node.value, {}) for node in named for target in _names(node.targets)}
    return {name: number for name, number in numbers.items() if number is not None}


def _names(nodes: list[ast.AST]) -> list[ast.Name]:
    """Returns the names in these nodes, of which none is in another."""
    return [found for node in nodes for found in ast.walk(node) if isinstance(found, ast.Name)]


def _number(node: ast.AST | None, constants: dict[str, float]) -> float | None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.Call) and node.args and "timedelta" in ast.dump(node.func):
        return _number(node.args[0], constants)
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def _called(node: ast.AST) -> str:
    """Returns the last name of what is called, or ""."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def _has_clock(node: ast.AST, clocked: set[str]) -> bool:
    return any(_is_clock(inner) or getattr(inner, "id", None) in clocked for inner in ast.walk(node))


def _is_clock(node: ast.AST) -> bool:
    return _called(node) in CLOCKS and not node.args and not isinstance(node.func, ast.Name)


def _clocked_names(nodes: list[ast.AST]) -> set[str]:
    """Returns the names that hold what a clock said, or what was computed from it."""
    clocked: set[str] = set()
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Assign | ast.NamedExpr | ast.AugAssign) and _has_clock(node.value, clocked):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            clocked.update(name.id for name in _names(targets))
    return clocked


def _limits(node: ast.AST, constants: dict[str, float]) -> list[tuple[int, float]]:
    """Returns line and seconds of each limit that real work might exceed. 0 is no limit: it does not wait."""
    given = [(value.lineno, _number(value, constants)) for value in _limiting(node) if value]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        given += [(node.lineno, float(match["seconds"])) for match in IN_TEXT.finditer(node.value)]
    return [(line, number) for line, number in given if number is not None and 0 < number < HANG_S]


def _limiting(node: ast.AST) -> Iterator[ast.AST | None]:
    """Yields the values that a node gives to limits of time, by their names or places."""
    if isinstance(node, ast.keyword) and LIMITS.fullmatch(node.arg or ""):
        yield node.value
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and LIMITS.fullmatch(str(key.value)):
                yield value
    if isinstance(node, ast.arguments):
        defaults = [*zip(node.args[::-1], node.defaults[::-1], strict=False)]
        for argument, value in [*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:
            if LIMITS.fullmatch(argument.arg):
                yield value
    if _called(node) in WAITING and node.args:
        yield node.args[-1]


def _is_sleep(node: ast.AST, constants: dict[str, float]) -> bool:
    return _called(node) == "sleep" and bool(node.args) and (_number(node.args[0], constants) or 0) > 0


def _is_delay(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return "=" in node.value and bool(DELAYS.search(node.value))
    return _called(node) == "Timer"


def looked_at() -> list[Path]:
    paths = [path.relative_to(TESTS) for path in sorted(TESTS.rglob("*.py"))]
    return [path for path in paths if path.parts[0] not in NOT_YET and path.name != Path(__file__).name]


def test_no_time_decides_a_test():
    found = {}
    for path in looked_at():
        for function, line, what in findings((TESTS / path).read_text()):
            place = f"{path}::{function}" if function else str(path)
            found.setdefault(place, []).append(f"tests/{path}:{line}: {what}")
    wrong = [line for place, lines in found.items() if place not in EXCEPTIONS for line in lines]
    assert wrong == [], "\n".join(wrong)
    assert EXCEPTIONS.keys() - found.keys() == set(), "exceptions that nothing needs"
