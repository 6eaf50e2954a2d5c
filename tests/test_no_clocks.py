"""No test passes or fails by how fast the machine is: its sources compare no clock, and set no short limit.

What waits takes a clock that the test moves on (`tests.clock`, `tests.virtual_time`), or waits for an event,
a gate file, a stopped process or a count. Costs are counts. What remains is `HANG_S`, after which a test
hangs.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.limits import HANG_S

TESTS = Path(__file__).parent

# `path::function`, `path::` for what is in no function, `path` or `folder/` -> why its time decides no test.
PASSES = "the limit is to pass, and nothing comes before it"
LETS_OTHERS = "others may go on meanwhile; what is looked at is the same however far they come"
CROSSES = "requests that last across an update: with more load they last longer"
FILE_TIME = "the time now, for the age of files that the test makes old"
EXCEPTIONS = {
    "gpu_check/test_command.py::test_a_part_that_hangs_is_ended": PASSES,
    "extensions/agents/test_programs.py": "the time of a program: those that exceed it never end",
    "extensions/programs/": "the limit of a program: those that exceed it never end, others need a hundredth",
    "extensions/islands/fleet.py::__init__": "an island that is not told of a break waits for so long",
    "extensions/islands/test_lighthouse.py::"
    "test_an_island_that_is_killed_costs_the_others_one_attempt_and_rejoins_by_replay": (
        "the attempt with the dead island exceeds it"
    ),
    "extensions/islands/test_lighthouse.py::test_a_rendezvous_that_is_none_is_an_exchange_that_fails": PASSES,
    "extensions/islands/test_lighthouse.py::"
    "test_an_island_that_is_stopped_for_a_while_is_merged_with_its_drift": PASSES,
    "judging/isolation/test_hostile.py::test_what_does_not_end_is_ended": PASSES,
    "extensions/reasoning_gym/test_hostile_answers.py::judge_all": (
        "endless answers exceed it; honest ones are asked again"
    ),
    "judging/test_workers.py::test_cpu_time_is_a_limit_of_its_own": PASSES,
    "soak_due.py::main": "a command that begins parts for so many minutes",
    "extensions/redis_streams/test_connections.py::"
    "test_a_server_that_reads_its_data_is_waited_for_beyond_the_time_for_one_that_is_away": (
        "the server answers that it loads, and is waited for although the limit is over"
    ),
    "extensions/redis_streams/test_streams.py::test_a_waiting_reader_blocks_and_does_not_poll": PASSES,
    "training/test_ranks.py::one_rank": "signs are sent as often; rank 0 waits until some have come",
    "training/test_weight_groups.py::"
    "test_a_server_that_says_it_joined_a_group_that_did_not_form_is_to_blame": PASSES,
    "conformance/broken_servers/": "a fault that takes time",
    "conformance/failing_trainers.py::init_worker": "a rank that hangs",
    "conformance/odd_servers/": "an oddity that takes time",
    "conformance/odd_trainers.py::save": "an oddity that takes time",
    "conformance/test_trainer_kit.py::"
    "test_a_rank_that_hangs_ends_with_the_patience_and_is_left_nowhere": PASSES,
    "extensions/stored_weights/store/test_download.py::"
    "test_a_source_that_is_silent_is_given_up_after_the_idle_timeout": LETS_OTHERS,
    "extensions/stored_weights/store/test_retention.py": FILE_TIME,
    "extensions/stored_weights/store/test_source_faults.py::"
    "test_wrong_bytes_of_the_only_source_may_be_an_accident_once": "the loop's clock, which the test moves",
    "contracts/test_weights.py::test_a_group_that_waits_is_aborted_from_another_thread": LETS_OTHERS,
    "contracts/test_weights.py::test_a_probe_is_part_of_joining": PASSES,
    "contracts/valid_requests.py::": "a join that is valid, and of a group that never forms",
    "inference_adapters/servers.py::wait_ready": "looks are counted",
    "inference_adapters/test_rules.py::"
    "test_a_join_waits_for_an_update_as_long_as_that_may_be_silent_and_is_then_refused": LETS_OTHERS,
    "launcher/executors/described.py::end": "a program that ends in this way",
    "launcher/executors/kit.py::start": "what a job that is asked to end has; those that exceed it are deaf",
    "launcher/executors/kit.py::test_a_job_is_asked_to_end_before_it_is_killed": PASSES,
    "extensions/cluster/test_ray.py::test_the_node_that_a_job_leaves_is_announced": "Ray's own deadline",
    "launcher/supervising/test_liveness.py": "the test gives the times",
    "launcher/supervising/test_restarts.py": "the test gives the times",
    "launcher/supervising/test_worker_policy.py::__init__": "of a scene whose time the test moves",
    "pipeline/runs.py::wait_for": "looks are counted",
    "pipeline/test_probe.py::test_a_probe_goes_on_while_the_same_weights_are_published_anew": PASSES,
    "pipeline/test_ray_runs.py::": "soak: nodes are killed while a run has steps left",
    "extensions/stored_weights/test_relay_publisher.py::": "the grace for a server that is not there",
    "extensions/stored_weights/test_relay_publisher.py::"
    "test_a_run_ends_where_no_server_can_load_the_newest_version": PASSES,
    "extensions/stored_weights/test_relay_publisher.py::test_a_server_that_stays_silent_is_replaced": PASSES,
    "pipeline/test_reference_renewal.py::": PASSES,
    "extensions/stored_weights/test_stored_runs.py::": CROSSES,
    "pipeline/test_weight_publisher.py::"
    "test_a_server_that_dies_in_the_rendezvous_takes_no_other_with_it": PASSES,
    "pipeline/test_weight_publisher.py::test_a_server_that_is_not_well_is_left_out": PASSES,
    "pipeline/test_weight_publisher.py::"
    "test_a_server_that_waits_its_time_out_in_a_broken_broadcast_is_waited_for": PASSES,
    "pipeline/test_weight_publisher.py::test_servers_that_lose_their_weights_every_time_are_an_error": PASSES,
    "pipeline/test_weight_publisher.py::test_the_last_server_gone_is_an_error": PASSES,
}

CLOCKS = {
    "monotonic",
    "monotonic_ns",
    "now",
    "perf_counter",
    "process_time",
    "thread_time",
    "time",
    "time_ns",
}
LIMIT = re.compile(  # the name of an argument that limits time
    r"(?!shutdown_)(\w*_)?(timeout|timeout_s|timeout_ms|within_s|patience_s|deadline_s|grace_s|limit_s"
    r"|verdict_s|heartbeat_s|longest_s)|cpu_s"
)
SETTING = re.compile(rf"\b({LIMIT.pattern})=(?P<seconds>\d+(\.\d+)?)\b")
DELAY = re.compile(r"\b(token_delay_s|heldout_s)=")
WAITING = {"communicate", "join", "poll", "settimeout", "timeout", "wait", "wait_for", "wait_procs"}


def findings(source: str) -> Iterator[tuple[str, int, str]]:
    """Yields function, line and fault of what could let the machine's speed decide."""
    tree = ast.parse(source)
    numbers = _numbers(tree)
    has_virtual_time = "tests.virtual_time" in source
    for function, nodes in _functions(tree):
        clocked = _clocked(nodes)
        polling = _inside(nodes, ast.While)
        raising = _inside([node for node in nodes if "raises" in _managers(node)], ast.With)
        is_virtual = has_virtual_time or _names(nodes, {"Clock"})
        for node in nodes:
            if isinstance(node, ast.Compare) and _has_clock(node, clocked) and not has_virtual_time:
                yield function, node.lineno, "compares a clock"
            if is_virtual:
                continue
            if node not in raising:
                yield from ((function, line, f"a limit of {s:g} s") for line, s in _limits(node, numbers))
            if node not in polling and _called(node) == "sleep" and _number(node.args[0], numbers):
                yield function, node.lineno, "an order by sleeping"
            if _called(node) == "Timer" or DELAY.search(_text(node)):
                yield function, node.lineno, "an order by delays"


def _functions(tree: ast.Module) -> Iterator[tuple[str, list[ast.AST]]]:
    """Yields each outermost function with all its nodes, and the module's other nodes under ""."""
    seen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in seen:
            nodes = list(ast.walk(node))
            seen.update(nodes)
            yield node.name, nodes
    yield "", [node for node in ast.walk(tree) if node not in seen]


def _inside(nodes: Iterable[ast.AST], *kinds: type[ast.AST]) -> set[ast.AST]:
    return {inner for node in nodes if isinstance(node, kinds) for inner in ast.walk(node)}


def _names(nodes: Iterable[ast.AST], wanted: set[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in wanted for node in nodes)


def _called(node: ast.AST) -> str:
    """Returns the last name of what is called, or ""."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", None) or getattr(function, "id", "")


def _managers(node: ast.AST) -> set[str]:
    return {_called(item.context_expr) for item in getattr(node, "items", [])}


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _numbers(tree: ast.Module) -> dict[str, float]:
    """Returns the module's constants that are numbers."""
    named = [
        node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    return {node.targets[0].id: number for node in named if (number := _number(node.value, {}))}


def _number(node: ast.AST | None, numbers: dict[str, float]) -> float:
    """Returns the seconds of a literal, or of a constant of the module; 0 if they are not known."""
    if isinstance(node, ast.Name):
        return numbers.get(node.id, 0.0)
    if _called(node) == "timedelta":
        return _number(node.keywords[0].value, numbers) if node.keywords else 0.0
    known = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return float(node.value) if known else 0.0


def _clocked(nodes: list[ast.AST]) -> set[str]:
    """Returns the names that hold what a clock said, or what was computed from it."""
    clocked: set[str] = set()
    given = [node for node in nodes if isinstance(node, ast.Assign | ast.NamedExpr | ast.AugAssign)]
    for node in sorted(given, key=lambda node: node.lineno):
        if _has_clock(node.value, clocked):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            clocked |= {name.id for name in targets if isinstance(name, ast.Name)}
    return clocked


def _has_clock(node: ast.AST, clocked: set[str]) -> bool:
    asked = (inner for inner in ast.walk(node) if _called(inner) in CLOCKS and not inner.args)
    return any(isinstance(each.func, ast.Attribute) for each in asked) or _names(ast.walk(node), clocked)


def _limits(node: ast.AST, numbers: dict[str, float]) -> Iterator[tuple[int, float]]:
    """Yields line and seconds of each limit that real work might exceed. 0 is none: it does not wait."""
    found = [(value.lineno, _number(value, numbers)) for value in _limiting(node)]
    found += [(node.lineno, float(match["seconds"])) for match in SETTING.finditer(_text(node))]
    yield from ((line, seconds) for line, seconds in found if 0 < seconds < HANG_S)


def _limiting(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the values that a node gives to limits of time, by their names or places."""
    if isinstance(node, ast.keyword) and LIMIT.fullmatch(node.arg or ""):
        yield node.value
    if isinstance(node, ast.Dict):
        keys = [_text(key) if key else "" for key in node.keys]
        pairs = zip(keys, node.values, strict=True)
        yield from (value for key, value in pairs if key.endswith("_s") and LIMIT.fullmatch(key))
    if isinstance(node, ast.arguments):
        pairs = [
            *zip(node.args[::-1], node.defaults[::-1], strict=False),
            *zip(node.kwonlyargs, node.kw_defaults, strict=True),
        ]
        yield from (value for argument, value in pairs if value and LIMIT.fullmatch(argument.arg))
    if _called(node) in WAITING and node.args:
        yield node.args[-1]


def test_no_time_decides_a_test():
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        name = str(path.relative_to(TESTS))
        if path != Path(__file__):
            for function, line, fault in findings(path.read_text()):
                found.setdefault(_place(f"{name}::{function}"), []).append(f"tests/{name}:{line}: {fault}")
    wrong = [line for place, lines in found.items() if place not in EXCEPTIONS for line in lines]
    assert wrong == [], "\n".join(wrong)
    assert EXCEPTIONS.keys() - found.keys() == set(), "exceptions that nothing needs"


def _place(found: str) -> str:
    """Returns the folder or file of a place if it is an exception as a whole."""
    for wide in EXCEPTIONS:
        if wide.endswith(("/", ".py")) and found.startswith(wide):
            return wide
    return found
