"""Whole runs on a Ray cluster of this machine: a run loses its workers' node, its launcher, and the head."""

import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from benchmarks.ray_nodes import RayNodes, raylet_of
from contracts.conformance.processes import fork_server
from contracts.records import Restarted, StepClosed
from extensions.redis_streams.connection import REDIS_VARIABLE
from pipelinerl.training.checkpoints import Checkpoints
from tests.pipeline.runs import (
    alive,
    assert_accounted,
    finish,
    job_pid,
    processes_of,
    records,
    resume,
    resumptions_of,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)

pytestmark = pytest.mark.long
TWO_SERVERS = ("executor=ray", "streams=redis", "world.servers=2", "eval.every=null")
UNHURRIED = "+inference.arguments.token_delay_s=0.1"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    fork_server()
    forkserver.ensure_running()  # later its environment would name a cluster, and it would end with that
    yield
    wait_for(lambda: processes_of(tmp_path) == [])


def cluster(monkeypatch: pytest.MonkeyPatch, nodes: RayNodes, count: int) -> None:
    """Starts nodes with a place for a server each, and lets launchers find them."""
    for _ in range(count):
        nodes.start(cpus=1)
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)


def steps_made(run: Path) -> int:
    return sum(isinstance(record, StepClosed) for record in records(run, "trainer_events"))


def test_the_workers_begin_again_on_another_node_when_theirs_is_lost(tmp_path, monkeypatch):
    """Then their launcher is killed, and the run is resumed."""
    run = tmp_path / "run"
    with RayNodes(head_cpus=2) as nodes:
        cluster(monkeypatch, nodes, 3)
        launcher = start(run, *TWO_SERVERS, "max_steps=60", "checkpoint.every=2", UNHURRIED)
        wait_for_record(run, "trainer_events", StepClosed, count=5)
        gone = raylet_of(job_pid(run, "pipelinerl.trainer"))
        workers = [job_pid(run, f"pipelinerl.{name}") for name in ("trainer", "actor", "preprocessor")]
        os.kill(gone, signal.SIGKILL)
        nodes.start(cpus=1)
        wait_for_record(run, "launcher_events", Restarted)
        (restarted,) = [r for r in records(run, "launcher_events") if isinstance(r, Restarted)]
        assert restarted.why.startswith("trainer-0 is lost: ")
        assert not any(map(alive, workers))
        wait_for_record(run, "trainer_events", StepClosed, count=steps_made(run) + 5)
        processes = [*processes_of(run), *server_pids(run)]
        launcher.send_signal(signal.SIGKILL)
        wait_for(lambda: not any(map(alive, processes)))
        status, err = finish(resume(run))
        assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == 60 * 8
    assert len(resumptions_of(run)) == 2


def test_the_loss_of_the_head_ends_a_run_which_is_resumed_on_another_cluster(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=3) as nodes, RayNodes(head_cpus=5) as others:
        cluster(monkeypatch, nodes, 2)
        launcher = start(run, *TWO_SERVERS, "max_steps=1000", "checkpoint.every=2", UNHURRIED)
        wait_for_record(run, "trainer_events", StepClosed, count=3)
        cluster(monkeypatch, others, 0)  # its head has a place for everything
        processes = [*processes_of(run), *server_pids(run)]
        os.kill(nodes.gcs(), signal.SIGKILL)
        status, err = finish(launcher)
        assert status == 1
        assert "the head of the Ray cluster" in err, err
        assert not any(map(alive, processes))
        last = Checkpoints(run).complete_checkpoints()[-1].version + 5
        launcher = resume(run, f"max_steps={last}")
        job_pid(run, "pipelinerl.trainer")  # a reader that came before it would keep Redis
        wait_for_record(run, "trainer_events", StepClosed, count=steps_made(run) + 1)
        status, err = finish(launcher)
        assert status == 0, err
    assert len(resumptions_of(run)) == 1
    assert len(assert_accounted(run)["trained"]) == last * 8
