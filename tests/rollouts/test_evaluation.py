"""What attempts at held-out problems add up to, and when a pinned server is wanted, used and released."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from pathlib import Path

import pytest

from contracts.records import Evaluated, Pinned, Record, Released, Rollout, SetResult, WeightsPublished
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.of_run import build_client
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.components import build_domain
from pipelinerl.config import EvalConfig, RunConfig
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.rollouts.evaluation import as_sampled, held_out, result_of
from pipelinerl.rollouts.evaluator import Evaluator, holders_of
from pipelinerl.rollouts.pinned_server import PinnedServer
from pipelinerl.rollouts.rollout_metrics import RolloutMetrics
from pipelinerl.rollouts.runner import RolloutRunner
from pipelinerl.spans import Spans
from pipelinerl.streams.events import evaluated_versions
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.stream_thread import StreamThread, ThreadWriter
from tests.builders import completion, rollout
from tests.clients.fake_servers import HANGS, FakeServer, served
from tests.exams_domain import Exams
from tests.pipeline.runs import MINIATURE
from tests.ports import free_port
from tests.virtual_time import in_virtual_time


def attempt(problem: int, success: float, version: int = 5) -> Rollout:
    sampled = [completion([1], [2], version=version)]
    return rollout(problem, completions=sampled, metrics={"success": success})


def test_only_a_server_with_weights_of_this_run_can_be_pinned():
    for live, holders in (([3, -1, 2], ["a", "c"]), (None, ["a", "b", "c"])):
        published = WeightsPublished(
            run="r", version=3, servers=["a", "b", "c"], live=live, seconds=0, bytes=0, paused_s=0
        )
        assert holders_of(published) == holders


def test_success_is_a_mean_over_problems_of_the_mean_over_attempts():
    problems = held_out(Exams(seed=0), EvalConfig(every=None, problems=3, attempts_of={"hard": 4}))
    assert [(p.index, p.of_set, p.attempts) for p in problems] == [
        (0, "easy", 1),
        (1, "hard", 4),
        (2, "easy", 1),
    ]
    failed = rollout(1, completions=[], status="failed:timeout")
    ended = [attempt(0, 1.0, version=4), attempt(1, 1.0), attempt(1, 0.0), failed]
    result = result_of(
        problems, ended, version=3
    )  # one at the hard problem, and the second easy one, never ended
    assert result.sets == [
        SetResult(name="easy", problems=2, attempts=1, success=0.5, failed=1),
        SetResult(name="hard", problems=1, attempts=4, success=0.25, failed=2),
    ]
    assert (result.success, result.problems, result.failed) == (pytest.approx((1 + 0.25 + 0) / 3), 3, 3)
    assert (result.version, result.first_version, result.last_version) == (3, 4, 5)


def test_without_a_token_its_versions_are_that_which_was_live():
    result = result_of(held_out(Exams(seed=0), EvalConfig(every=None, problems=3)), [], version=3)
    assert (result.success, result.first_version, result.last_version) == (0.0, 3, 3)


@pytest.fixture
def config() -> RunConfig:
    return compose_config([*MINIATURE, "world.servers=2", "eval.pinned=true", "eval.every=2"])


@contextlib.asynccontextmanager
async def evaluating(
    config: RunConfig,
    tmp_path: Path,
    spawn: Callable[[Coroutine], asyncio.Task],
    evaluated: Collection[int] = (),
) -> AsyncIterator[Evaluator]:
    streams, thread = FileStreams(tmp_path), StreamThread()
    writers = [ThreadWriter(streams.writer(name), thread) for name in ("eval_rollouts", "actor_events")]
    told = RolloutMetrics(tmp_path), Spans(tmp_path, "actor")
    async with open_session(token=None) as session:
        domain = build_domain(config)
        client = build_client(config, session, ServerPool(1), domain)
        attempt = RolloutRunner("", domain, client, config.rollout)
        yield Evaluator(config, attempt, *writers, *told, evaluated, spawn)


def written_in(tmp_path: Path) -> list[Record]:
    reader = FileStreams(tmp_path).reader("actor_events")
    return [entry.record for entry in reader.read(timeout_s=0)]


def events_of(
    config: RunConfig,
    tmp_path: Path,
    publications: list[list[str]],
    start: Callable[[Coroutine], asyncio.Task] = asyncio.create_task,
    first_version: int = 1,
    evaluated: Collection[int] = (),
    versions: Sequence[int] = (),
    at_last: Callable[[], None] = lambda: None,
) -> list[Record]:
    """What an evaluator writes when one version after the other, or these, are published to these servers."""
    begun = []

    def spawn(work: Coroutine) -> asyncio.Task:
        begun.append(start(work))
        return begun[-1]

    async def scenario():
        async with evaluating(config, tmp_path, spawn, evaluated) as evaluator:
            figures = {"seconds": 0.0, "bytes": 0, "paused_s": 0.0}
            numbers = versions or range(first_version, first_version + len(publications))
            for version, servers in zip(numbers, publications, strict=True):
                await evaluator.on_published(
                    WeightsPublished(run="r", version=version, servers=servers, **figures)
                )
            at_last()
            for task in begun:
                with contextlib.suppress(asyncio.CancelledError):  # cancelled
                    await task

    asyncio.run(scenario())
    return written_in(tmp_path)


BOTH, OTHER, LAST = ["a", "b"], ["a"], ["b"]
PIN, RELEASE = Pinned(server="b"), Released(server="b")


@pytest.mark.parametrize(
    ("publications", "begun", "written"),
    [
        ([BOTH], 0, []),
        ([BOTH, BOTH], 0, [PIN]),
        ([BOTH, BOTH, BOTH], 0, [PIN]),  # under way when it was pinned
        ([BOTH, BOTH, BOTH, OTHER], 1, [PIN]),
        ([BOTH, BOTH, OTHER, OTHER, OTHER], 1, [PIN]),
        ([BOTH, BOTH, LAST], 0, [PIN, RELEASE]),
        ([BOTH, BOTH, OTHER, LAST], 1, [PIN, RELEASE]),
        ([BOTH, OTHER], 0, []),  # due, but with only one server
    ],
)
def test_an_evaluation_begins_when_its_server_is_out(config, tmp_path, publications, begun, written):
    started = []
    all_are_published = asyncio.Event()

    def start(work: Coroutine) -> asyncio.Task:
        started.append(work)
        work.close()
        return asyncio.create_task(all_are_published.wait())

    assert events_of(config, tmp_path, publications, start, at_last=all_are_published.set) == written
    assert len(started) == begun


def test_a_server_that_was_left_out_because_it_is_gone_is_not_evaluated_on(config, tmp_path):
    gone = f"http://127.0.0.1:{free_port()}"
    written = events_of(config, tmp_path, [["a", gone], ["a", gone], ["a"]])
    assert written == [Pinned(server=gone), Released(server=gone)]


@pytest.mark.parametrize("begun", [False, True])
def test_an_evaluation_is_called_off_at_once_when_its_server_has_left(config, tmp_path, begun):
    """With only the second publication the server is still in the weight group."""
    silent = FakeServer(fault=HANGS)

    async def scenario() -> list[Record]:
        tasks: list[asyncio.Task] = []

        def spawn(work: Coroutine) -> asyncio.Task:
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        async with served(silent), evaluating(config, tmp_path, spawn) as evaluator:
            figures = {"run": "r", "seconds": 0.0, "bytes": 0, "paused_s": 0.0}
            both = ["a", silent.url]
            await evaluator.on_published(WeightsPublished(version=2, servers=both, **figures))
            evaluator._pinned.version = lambda: asyncio.sleep(0, 2)  # which a fake has no contract for
            if begun:
                await evaluator.on_published(WeightsPublished(version=3, servers=["a"], **figures))
                while not silent.requests:
                    await asyncio.sleep(0)
            await evaluator.forget(silent.url)  # time stands still: nobody asks again whether it is there
            await asyncio.gather(*tasks)
        return written_in(tmp_path)

    pinned, *results, released = in_virtual_time(scenario())
    assert (pinned, released) == (Pinned(server=silent.url), Released(server=silent.url))
    assert [(result.version, result.failed) for result in results] == ([(2, 16)] if begun else [])


def ending_at_once(begun: list) -> Callable[[Coroutine], asyncio.Future]:
    def start(work: Coroutine) -> asyncio.Future:
        begun.append(work)
        work.close()
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        return ended

    return start


def test_a_version_that_is_published_again_is_not_evaluated_again(config, tmp_path):
    begun = []
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"pinned": False})})
    assert events_of(config, tmp_path, [BOTH, OTHER], ending_at_once(begun), versions=[2, 2]) == []
    assert len(begun) == 1


@pytest.mark.parametrize(("version", "evaluations"), [(0, 1), (2, 0)])
def test_only_version_0_is_evaluated_without_a_server_to_pin(config, tmp_path, version, evaluations):
    begun = []
    assert events_of(config, tmp_path, [OTHER], ending_at_once(begun), first_version=version) == []
    assert len(begun) == evaluations


class TakenBackServer(PinnedServer):
    """Holds version 2 when it is first asked, and then 5."""

    async def version(self) -> int:
        self.calls = getattr(self, "calls", 0) + 1
        return 2 if self.calls == 1 else 5


def test_a_server_that_is_given_other_weights_yields_no_result(config, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("pipelinerl.rollouts.evaluator.PinnedServer", TakenBackServer)
    monkeypatch.setattr("pipelinerl.rollouts.pinned_server.POLL_S", 0.0)
    assert events_of(config, tmp_path, [BOTH, BOTH, OTHER]) == [PIN, RELEASE]
    assert "cancelled: b was given version 5" in caplog.text


@pytest.mark.parametrize(
    ("version", "evaluated", "written"),
    [(2, (), [PIN]), (2, {0, 2}, []), (3, {0, 2}, []), (4, {0, 2}, [PIN]), (0, (), [PIN]), (0, {0}, [])],
)
def test_what_is_due_at_the_version_that_a_run_goes_on_with_is_evaluated_once(
    config, tmp_path, version, evaluated, written
):
    assert events_of(config, tmp_path, [BOTH], first_version=version, evaluated=evaluated) == written


def test_a_version_that_servers_have_skipped_is_not_due_again():
    result = Evaluated(version=10, problems=1, success=1.0, first_version=12, last_version=13)
    later = as_sampled(result)
    assert (later.version, later.due) == (12, 10)
    assert evaluated_versions([later]) == {10, 12}
    assert as_sampled(later) == later
    assert evaluated_versions([result]) == {10}
