"""Whole runs on a Ray cluster of this machine: the loss of nodes, and their arrival."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from contracts.records import Evaluated, ServerJoined, ServerLeft, StepClosed, WeightsPublished
from pipelinerl.process import REDIS_VARIABLE
from tests.launcher.executors.ray_nodes import RayNodes
from tests.pipeline.runs import (
    alive,
    assert_accounted,
    finish,
    job_pid,
    job_pid_parent,
    launch,
    listener,
    processes_of,
    records,
    resume,
    start,
    wait_for,
    wait_for_record,
)

pytestmark = pytest.mark.long
TWO_SERVERS = ("executor=ray", "streams=redis", "world.servers=2", "eval.every=null")
UNHURRIED = "+inference.arguments.token_delay_s=0.1"
NOTICED_S = 10.0  # the loss of a node
SILENT_S = 15.0  # the loss of one whose processes live on


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    yield
    wait_for(lambda: processes_of(tmp_path) == [], within_s=20)


def cluster(monkeypatch: pytest.MonkeyPatch, nodes: RayNodes, count: int) -> None:
    """Starts nodes with a place for a server each, and lets launchers find them."""
    for _ in range(count):
        nodes.start(cpus=1)
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)


def of(run: Path, kind: type) -> list:
    stream = "trainer_events" if kind in (WeightsPublished, StepClosed) else "launcher_events"
    return [record for record in records(run, stream) if isinstance(record, kind)]


def raylet_of(pid: int) -> int:
    while Path(f"/proc/{pid}/comm").read_text().strip() != "raylet":
        pid = job_pid_parent(pid)
    return pid


def raylet_under(run: Path, name: str) -> int:
    """Returns the raylet whose node the server of this name is on."""
    url = [joined.url for joined in of(run, ServerJoined) if joined.name == name][-1]
    return raylet_of(wait_for(lambda: listener(url)))


def sets(run: Path) -> list[frozenset[str]]:
    """Returns the sets of servers that weights were published to, each once in a row."""
    every = [frozenset(published.servers) for published in of(run, WeightsPublished)]
    return [one for i, one in enumerate(every) if i == 0 or one != every[i - 1]]


def wait_for_servers(run: Path, count: int, within_s: float = 120) -> frozenset[str]:
    """Waits until the last publication was to so many servers; returns their URLs."""
    return wait_for(lambda: (last := sets(run)[-1:]) and len(last[0]) == count and last[0], within_s)


def left_after(run: Path, killed: float, count: int) -> float:
    """Waits for that many servers to have left; returns the seconds from the loss to the last."""
    wait_for(lambda: len(of(run, ServerLeft)) == count, 60)
    return of(run, ServerLeft)[-1].at - killed


def test_servers_on_nodes_that_are_lost_are_replaced_on_others(tmp_path, monkeypatch):
    """On a spare node; then on one that joins the cluster while the run goes on with one server."""
    run = tmp_path / "run"
    with RayNodes(head_cpus=3) as nodes:
        cluster(monkeypatch, nodes, 3)
        launcher = start(run, *TWO_SERVERS, "max_steps=80", UNHURRIED)
        first = wait_for_servers(run, 2)
        wait_for_record(run, "trainer_events", StepClosed, count=2)
        killed = time.time()
        os.kill(raylet_under(run, "server-1"), signal.SIGKILL)
        noticed = left_after(run, killed, 1)
        wait_for(lambda: len(sets(run)[-1]) == 2 and sets(run)[-1] != first)
        print(f"a server's node is lost: noticed after {noticed:.1f} s")
        print(f"it is replaced on a spare node: published after {time.time() - killed:.1f} s")
        killed = time.time()
        os.kill(raylet_under(run, "server-1"), signal.SIGKILL)
        noticed_again = left_after(run, killed, 2)
        wait_for_servers(run, 1)
        joined = time.time()
        nodes.start(cpus=1)
        wait_for_servers(run, 2)
        print(f"a node joins after another loss: published after {time.time() - joined:.1f} s")
        status, err = finish(launcher)
        assert status == 0, err
    assert noticed < NOTICED_S
    assert noticed_again < NOTICED_S
    assert [left.why for left in of(run, ServerLeft)] == ["lost", "lost"]
    assert [left.name for left in of(run, ServerLeft)] == ["server-1", "server-1"]
    kept = frozenset.intersection(*sets(run))
    assert len(kept) == 1
    assert [len(urls) for urls in sets(run)] == [2, 1, 2, 1, 2]
    assert len({*sets(run)[0], *sets(run)[2], *sets(run)[4]}) == 4, "each time at another address"
    assert len(assert_accounted(run)["trained"]) == 80 * 8


def test_a_server_on_a_silent_node_is_no_server_although_it_answers(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=3) as nodes:
        cluster(monkeypatch, nodes, 2)
        launcher = start(run, *TWO_SERVERS, "max_steps=100", UNHURRIED, "world.server_restarts=0")
        wait_for_servers(run, 2)
        raylet = raylet_under(run, "server-1")
        url = [joined.url for joined in of(run, ServerJoined) if joined.name == "server-1"][0]
        server = listener(url)
        stopped = time.time()
        os.kill(raylet, signal.SIGSTOP)
        assert left_after(run, stopped, 1) < SILENT_S
        wait_for_servers(run, 1)
        assert answers(url)
        published = len(of(run, WeightsPublished))
        wait_for(lambda: len(of(run, WeightsPublished)) > published + 3)
        assert answers(url)
        os.kill(raylet, signal.SIGCONT)
        wait_for(lambda: not alive(raylet) and not alive(server), 5)
        status, err = finish(launcher)
        assert status == 0, err
    assert [len(urls) for urls in sets(run)] == [2, 1]
    print(f"silent: left after {of(run, ServerLeft)[0].at - stopped:.1f} s")
    assert_accounted(run)


def answers(url: str) -> bool:
    there = urlsplit(url)
    with socket.socket() as client:
        return client.connect_ex((there.hostname, there.port)) == 0


def test_the_loss_of_a_workers_node_ends_a_run_which_is_resumed(tmp_path, monkeypatch):
    """Then its launcher is killed, and it is resumed once more; at last the cluster's head is."""
    run = tmp_path / "run"
    with RayNodes(head_cpus=2) as nodes:
        cluster(monkeypatch, nodes, 3)
        launcher = start(run, *TWO_SERVERS, "max_steps=60", "checkpoint.every=2", UNHURRIED)
        wait_for_record(run, "trainer_events", StepClosed, count=5)
        os.kill(raylet_of(job_pid(run, "pipelinerl.trainer")), signal.SIGKILL)
        killed = time.monotonic()
        status, err = finish(launcher, within_s=60)
        print(f"a rank's node is lost: status {status} after {time.monotonic() - killed:.1f} s")
        assert status == 1
        assert "trainer-0 is lost: " in err, err
        assert_accounted(run, ended=False)
        assert not processes_of(run)
        nodes.start(cpus=1)
        steps = len(of(run, StepClosed))
        launcher = resume(run)
        job_pid(
            run, "pipelinerl.trainer"
        )  # before that, a reader would keep the stream's server from starting
        wait_for_record(run, "trainer_events", StepClosed, count=steps + 5)
        launcher.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        wait_for(lambda: not processes_of(run), 10)
        print(f"the launcher is killed: nothing left after {time.monotonic() - killed:.1f} s")
        status, err = finish(resume(run))
        assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == 60 * 8


def test_the_loss_of_the_head_ends_a_run(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=3) as nodes:
        cluster(monkeypatch, nodes, 2)
        launcher = start(run, *TWO_SERVERS, "max_steps=1000", UNHURRIED)
        wait_for_record(run, "trainer_events", StepClosed, count=2)
        os.kill(nodes.gcs(), signal.SIGKILL)
        killed = time.monotonic()
        status, err = finish(launcher, within_s=90)
        print(f"the head is lost: status {status} after {time.monotonic() - killed:.1f} s")
        assert status == 1
        assert "the head of the Ray cluster" in err, err
        assert not processes_of(run)
    assert_accounted(run, ended=False)


def test_the_demo_learns_while_a_servers_node_is_lost_and_another_joins(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=4) as nodes:
        cluster(monkeypatch, nodes, 2)
        launcher = launch(run, "executor=ray", "streams=redis", "world.servers=2")
        wait_for_servers(run, 2, within_s=300)
        wait_for_record(run, "trainer_events", StepClosed, count=10, within_s=300)
        os.kill(raylet_under(run, "server-1"), signal.SIGKILL)
        wait_for_servers(run, 1)
        wait_for_record(run, "trainer_events", StepClosed, count=len(of(run, StepClosed)) + 5, within_s=300)
        nodes.start(cpus=1)
        wait_for_servers(run, 2, within_s=300)
        status, err = finish(launcher, within_s=1200)
        assert status == 0, err
    assert [len(urls) for urls in sets(run)] == [2, 1, 2]
    first, *_, last = [r.success for r in records(run, "actor_events") if isinstance(r, Evaluated)]
    print(f"held-out success {first:.2f} -> {last:.2f}")
    assert last > first + 0.15
    assert len(assert_accounted(run)["trained"]) == 80 * 16
