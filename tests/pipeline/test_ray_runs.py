"""Whole runs on a Ray cluster of this machine: the loss of nodes, and their arrival."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from benchmarks.ray_nodes import RayNodes, raylet_of
from contracts.conformance.processes import fork_server
from contracts.records import Evaluated, Restarted, ServerJoined, ServerLeft, StepClosed, WeightsPublished
from pipelinerl.process import REDIS_VARIABLE
from pipelinerl.training.checkpoints import Checkpoints
from tests.pipeline.runs import (
    alive,
    assert_accounted,
    finish,
    job_pid,
    launch_command,
    listener,
    processes_of,
    records,
    resume,
    resumptions_of,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)
from tests.pipeline.test_resume import REPEATABLE, steps, trained, weights

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


def of(run: Path, kind: type) -> list:
    stream = "trainer_events" if kind in (WeightsPublished, StepClosed) else "launcher_events"
    return [record for record in records(run, stream) if isinstance(record, kind)]


def url_of(run: Path, name: str) -> str:
    """Returns the address of the server of this name that joined last."""
    return [joined.url for joined in of(run, ServerJoined) if joined.name == name][-1]


def raylet_under(run: Path, name: str) -> int:
    """Returns the raylet whose node the server of this name is on."""
    url = url_of(run, name)
    return raylet_of(wait_for(lambda: listener(url)))


def sets(run: Path) -> list[frozenset[str]]:
    """Returns the sets of servers that weights were published to, each once in a row."""
    every = [frozenset(published.servers) for published in of(run, WeightsPublished)]
    return [one for i, one in enumerate(every) if i == 0 or one != every[i - 1]]


def wait_for_servers(run: Path, count: int) -> frozenset[str]:
    """Waits until the last publication was to so many servers; returns their URLs."""
    return wait_for(lambda: (last := sets(run)[-1:]) and len(last[0]) == count and last[0])


def left_after(run: Path, killed: float, count: int) -> float:
    """Waits for that many servers to have left; returns the seconds from the loss to the last."""
    wait_for(lambda: len(of(run, ServerLeft)) == count)
    return of(run, ServerLeft)[-1].at - killed


def test_a_run_over_three_nodes_is_the_same_as_on_one_machine(tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    repeatable = (*REPEATABLE, "world.servers=2")
    with RayNodes(head_cpus=3) as nodes:
        cluster(monkeypatch, nodes, 2)
        began = time.monotonic()
        launcher = start(there, *repeatable, "executor=ray", "streams=redis")
        wait_for_servers(there, 2)
        jobs = [*server_pids(there), job_pid(there, "pipelinerl.trainer")]
        assert {*map(raylet_of, jobs)} == {*nodes.raylets()}
        status, err = finish(launcher)
        assert status == 0, err
        print(f"on three nodes: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    status, err = finish(start(here, *repeatable))
    assert status == 0, err
    print(f"on one machine: {time.monotonic() - began:.1f} s")
    assert sets(here) != sets(there)
    assert len(steps(here)) == 12
    assert steps(there) == steps(here)
    assert weights(there).keys() == weights(here).keys()
    assert all(torch.equal(tensor, weights(here)[name]) for name, tensor in weights(there).items())
    assert sampled(there) == sampled(here)
    assert len(sampled(here)) == 12 * 32


def sampled(run: Path) -> dict[tuple[str, str], tuple]:
    """Returns what was trained on: tokens, their log-probabilities and the reward, by problem and attempt."""
    return {
        (rollout.problem_id, rollout.rollout_id[-1]): (
            [([*each.token_ids], [*each.logprobs]) for each in rollout.completions],
            rollout.reward,
        )
        for rollout in trained(run)
    }


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
        left_after(run, killed, 2)
        wait_for_servers(run, 1)
        joined = time.time()
        nodes.start(cpus=1)
        wait_for_servers(run, 2)
        print(f"a node joins after another loss: published after {time.time() - joined:.1f} s")
        status, err = finish(launcher)
        assert status == 0, err
    assert [left.why for left in of(run, ServerLeft)] == ["lost", "lost"]
    assert [left.name for left in of(run, ServerLeft)] == ["server-1", "server-1"]
    kept = frozenset.intersection(*sets(run))
    assert len(kept) == 1
    assert [len(urls) for urls in sets(run)] == [2, 1, 2, 1, 2]
    assert len({*sets(run)[0], *sets(run)[2], *sets(run)[4]}) == 4, "each time at another address"
    assert len(assert_accounted(run)["trained"]) == 80 * 8


def test_a_node_that_is_lost_in_a_broadcast_does_not_hold_it_up(tmp_path, monkeypatch):
    """The trainer has sent the first tensor of a version, and stops before the second until it is lost."""
    run, hold, held = (tmp_path / name for name in ("run", "hold", "held"))
    trainer = ["trainer._target_=tests.held_trainer.HeldTrainer", f"+trainer.hold={hold}"]
    trainer += [f"+trainer.held={held}", "weights.bucket_bytes=1024"]  # so each tensor has a bucket
    with RayNodes(head_cpus=3) as nodes:
        cluster(monkeypatch, nodes, 2)
        launcher = start(run, *TWO_SERVERS, *trainer, "max_steps=20", UNHURRIED)
        wait_for_servers(run, 2)
        wait_for_record(run, "trainer_events", StepClosed, count=2)
        lost = raylet_under(run, "server-1")
        server = url_of(run, "server-1")
        process = listener(server)
        hold.touch()
        wait_for(held.exists)
        before = of(run, WeightsPublished)[-1]
        killed = time.time()
        os.kill(lost, signal.SIGKILL)
        wait_for(lambda: not alive(process))
        gone_s = time.time() - killed
        held.unlink()
        status, err = finish(launcher)
        assert status == 0, err
    after = next(each for each in of(run, WeightsPublished) if each.version > before.version)
    print(
        f"a node is lost in a broadcast: its server is gone after {gone_s:.1f} s, and left after "
        f"{of(run, ServerLeft)[0].at - killed:.1f} s; published without it after {after.at - killed:.1f} s"
    )
    assert server in before.servers
    assert after.version == before.version + 1
    assert [*after.servers, server] == before.servers
    assert [len(urls) for urls in sets(run)] == [2, 1]
    assert len(assert_accounted(run)["trained"]) == 20 * 8


def test_a_server_on_a_silent_node_is_no_server_although_it_answers(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=3) as nodes:
        cluster(monkeypatch, nodes, 2)
        launcher = start(run, *TWO_SERVERS, "max_steps=100", UNHURRIED, "restarts.servers=0")
        wait_for_servers(run, 2)
        raylet = raylet_under(run, "server-1")
        url = url_of(run, "server-1")
        server = listener(url)
        stopped = time.time()
        os.kill(raylet, signal.SIGSTOP)
        left_after(run, stopped, 1)
        wait_for_servers(run, 1)
        assert answers(url)
        published = len(of(run, WeightsPublished))
        wait_for(lambda: len(of(run, WeightsPublished)) > published + 3)
        assert answers(url)
        os.kill(raylet, signal.SIGCONT)
        wait_for(lambda: not alive(raylet) and not alive(server))
        status, err = finish(launcher)
        assert status == 0, err
    assert [len(urls) for urls in sets(run)] == [2, 1]
    print(f"silent: left after {of(run, ServerLeft)[0].at - stopped:.1f} s")
    assert_accounted(run)


def answers(url: str) -> bool:
    there = urlsplit(url)
    with socket.socket() as client:
        return client.connect_ex((there.hostname, there.port)) == 0


def test_a_server_whose_node_drains_leaves_before_it_ends(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=3) as nodes:
        cluster(monkeypatch, nodes, 3)
        launcher = start(run, *TWO_SERVERS, "max_steps=60", UNHURRIED)
        first = wait_for_servers(run, 2)
        server = listener(url_of(run, "server-1"))
        raylet = raylet_of(server)
        nodes.drain(raylet, seconds=20)
        announced = time.time()
        noticed = left_after(run, announced, 1)
        assert alive(server)
        wait_for(lambda: not alive(server))
        ended = time.time() - announced
        print(f"a node drains: its server left after {noticed:.1f} s, and ended after {ended:.1f} s")
        wait_for(lambda: len(sets(run)[-1]) == 2 and sets(run)[-1] != first)
        status, err = finish(launcher)
        assert status == 0, err
    assert [left.why for left in of(run, ServerLeft)] == ["draining"]
    assert json.loads((run / "summary.json").read_text())["rollouts_failed_by_infrastructure"] == 0
    assert len(assert_accounted(run)["trained"]) == 60 * 8


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
        killed = time.time()
        nodes.start(cpus=1)
        wait_for_record(run, "launcher_events", Restarted)
        (restarted,) = of(run, Restarted)
        print(f"a rank's node is lost: begun again after {restarted.at - killed:.1f} s")
        assert restarted.why.startswith("trainer-0 is lost: ")
        assert not any(map(alive, workers))
        steps = len(of(run, StepClosed))
        wait_for_record(run, "trainer_events", StepClosed, count=steps + 5)
        print(f"the first step after {of(run, StepClosed)[steps].at - killed:.1f} s")
        processes = [*processes_of(run), *server_pids(run)]
        launcher.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        wait_for(lambda: not any(map(alive, processes)))
        print(f"the launcher is killed: nothing left after {time.monotonic() - killed:.1f} s")
        status, err = finish(resume(run))
        assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == 60 * 8
    assert len(resumptions_of(run)) == 2


def test_the_workers_wait_for_a_node_only_for_so_long(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=2) as nodes:
        cluster(monkeypatch, nodes, 3)
        launcher = start(
            run, *TWO_SERVERS, "max_steps=1000", "checkpoint.every=2", UNHURRIED, "executor.place_timeout_s=3"
        )
        wait_for_record(run, "trainer_events", StepClosed, count=5)
        processes = [*processes_of(run), *server_pids(run)]
        os.kill(raylet_of(job_pid(run, "pipelinerl.trainer")), signal.SIGKILL)
        status, err = finish(launcher)
        assert status == 1
        assert "within executor.place_timeout_s=3 s" in err, err
        assert not any(map(alive, processes))
    assert_accounted(run, ended=False)


def test_the_loss_of_the_head_ends_a_run_which_is_resumed_on_another_cluster(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=3) as nodes, RayNodes(head_cpus=5) as others:
        cluster(monkeypatch, nodes, 2)
        launcher = start(run, *TWO_SERVERS, "max_steps=1000", "checkpoint.every=2", UNHURRIED)
        wait_for_record(run, "trainer_events", StepClosed, count=3)
        cluster(monkeypatch, others, 0)  # its head has a place for everything
        processes = [*processes_of(run), *server_pids(run)]
        os.kill(nodes.gcs(), signal.SIGKILL)
        killed = time.monotonic()
        status, err = finish(launcher)
        print(f"the head is lost: status {status} after {time.monotonic() - killed:.1f} s")
        assert status == 1
        assert "the head of the Ray cluster" in err, err
        assert not any(map(alive, processes))
        last = Checkpoints(run).complete_checkpoints()[-1].version + 5
        ended = time.monotonic()
        launcher = resume(run, f"max_steps={last}")
        job_pid(run, "pipelinerl.trainer")  # a reader that came before it would keep Redis
        wait_for_record(run, "trainer_events", StepClosed, count=len(of(run, StepClosed)) + 1)
        print(f"it is resumed on another cluster: a step is closed after {time.monotonic() - ended:.1f} s")
        status, err = finish(launcher)
        assert status == 0, err
    assert len(resumptions_of(run)) == 1
    assert len(assert_accounted(run)["trained"]) == last * 8


def test_the_demo_learns_while_a_servers_node_is_lost_and_another_joins(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RayNodes(head_cpus=4) as nodes:
        cluster(monkeypatch, nodes, 2)
        launcher = launch_command(run, "executor=ray", "streams=redis", "world.servers=2")
        wait_for_servers(run, 2)
        wait_for_record(run, "trainer_events", StepClosed, count=10)
        os.kill(raylet_under(run, "server-1"), signal.SIGKILL)
        wait_for_servers(run, 1)
        wait_for_record(run, "trainer_events", StepClosed, count=len(of(run, StepClosed)) + 5)
        nodes.start(cpus=1)
        wait_for_servers(run, 2)
        status, err = finish(launcher)
        assert status == 0, err
    assert [len(urls) for urls in sets(run)] == [2, 1, 2]
    first, *_, last = [r.success for r in records(run, "actor_events") if isinstance(r, Evaluated)]
    print(f"held-out success {first:.2f} -> {last:.2f}")
    assert last > first + 0.15
    assert len(assert_accounted(run)["trained"]) == 80 * 16
