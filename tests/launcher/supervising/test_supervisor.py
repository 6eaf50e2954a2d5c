"""What the end of a job means for a run, with real processes that are no pipeline."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.records import Restarted
from pipelinerl.launcher import terminal
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.base import Ended, Lost, Placement, Running
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.launcher.jobs import Job, PlacedRun
from pipelinerl.launcher.prepare import place
from pipelinerl.launcher.resource_requests import job_specs
from pipelinerl.launcher.supervising.failures import JobFailedError, failed_worker, have_succeeded
from pipelinerl.launcher.supervising.supervisor import Supervisor
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.of_run import StreamsServer

FOREVER = "exec sleep 1000"
PLACEMENT = Placement("node", "a")


class Planner:
    """Runs a line of shell for each job, `exit 0` where none is given."""

    def __init__(self, **lines: str):
        self._lines = {name.replace("_", "-"): line for name, line in lines.items()}

    def job(self, name, role, placements):
        line = self._lines.get(name, FOREVER if role == "server" else "exit 0")
        return Job(
            name, role, placements[name], ("/bin/sh", "-c", line), dict(os.environ), url=f"http://{name}"
        )


@pytest.fixture
def handlers():
    """The supervisor ignores signals at its end, as its process is about to end."""
    before = {number: signal.getsignal(number) for number in terminal.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def supervise(path: Path, *overrides: str, server: StreamsServer | None = None, **lines: str) -> list[int]:
    """Runs the lines to the end of the run; returns how many servers were alive at each look."""
    config = compose_config(["inference=scripted", "trainer=scripted", *overrides])
    executor = LocalExecutor()
    placements = place(config, executor, job_specs(config))
    streams = FileStreams(path / "streams")
    placed = PlacedRun(config, path, Planner(**lines), executor, placements)
    shown: list[int] = []
    events = streams.writer("launcher_events")
    try:
        Supervisor(placed, streams, events, server).run(shown.append)
    finally:
        events.close()
        executor.close()
    return shown


@pytest.mark.usefixtures("handlers")
def test_the_last_words_of_a_worker_are_its_error_also_where_torch_names_the_rank(tmp_path):
    says = "echo '[rank0]: RuntimeError: a peer is gone'; echo Unclosed connector; exit 1"
    with pytest.raises(JobFailedError, match="trainer-0 ended with status 1; .*RuntimeError: a peer is gone"):
        supervise(tmp_path, actor=FOREVER, trainer_0=says)


@pytest.mark.usefixtures("handlers")
def test_a_service_is_started_again_where_it_was_and_its_log_goes_on(tmp_path):
    again = f"test -e {tmp_path}/first && touch {tmp_path}/second && {FOREVER}"
    line = f"{again}; touch {tmp_path}/first; echo first; exit 1"
    until_second = f"until test -e {tmp_path}/second; do sleep 0.05; done"
    lines = dict.fromkeys(("actor", "preprocessor", "trainer_0"), until_second)
    supervise(tmp_path, "reference=scripted", reference=line, **lines)
    assert (tmp_path / "logs" / "reference.log").read_text() == "first\n"


@pytest.mark.usefixtures("handlers")
def test_a_service_that_is_refused_ends_the_run(tmp_path):
    with pytest.raises(JobFailedError, match="reference ended with status 2; see .*no such model"):
        supervise(tmp_path, "reference=scripted", reference="echo no such model; exit 2", actor=FOREVER)


def test_a_worker_on_a_lost_node_is_named_before_those_that_it_takes_along():
    states = {
        "actor": Running(PLACEMENT),
        "trainer-0": Ended(PLACEMENT, 1),
        "trainer-1": Lost(PLACEMENT, "node b is gone"),
    }
    assert failed_worker(states) == "trainer-1"
    assert failed_worker({"actor": Running(PLACEMENT)}) is None and not have_succeeded(states, ["actor"])
    assert have_succeeded({"actor": Ended(PLACEMENT, 0)}, ["actor"])


class AwayOnce(StreamsServer):
    """Is away until it was asked twice, and was started again meanwhile."""

    name = "mine"
    asked = 0

    def __exit__(self, *_: object) -> None: ...

    def is_away(self) -> bool:
        self.asked += 1
        return self.asked <= 2

    def restarts(self) -> Iterator[str]:
        if self.asked == 3:
            yield "mine was gone"


@pytest.mark.usefixtures("handlers")
def test_while_the_server_of_the_streams_is_away_nothing_is_tended_and_its_restart_is_recorded(tmp_path):
    server = AwayOnce()
    until = f"until test -s {tmp_path}/metrics/launcher.jsonl; do sleep 0.05; done"
    shown = supervise(tmp_path, server=server, **dict.fromkeys(("actor", "preprocessor", "trainer_0"), until))
    assert server.asked >= 3 and len(shown) <= server.asked - 1
    told = FileStreams(tmp_path / "streams").reader("launcher_events").read(timeout_s=0)
    (restarted,) = [entry.record for entry in told if isinstance(entry.record, Restarted)]
    assert (restarted.kind, restarted.names, restarted.why) == ("services", ["mine"], "mine was gone")
