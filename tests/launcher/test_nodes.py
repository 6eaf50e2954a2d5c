"""How the launchers of several nodes meet, what each hears of the others, and who is refused."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import launch
from contracts.weights import connected_store, listening_store
from pipelinerl.addresses import LOOPBACK, own_address
from pipelinerl.errors import PlanError
from pipelinerl.launcher.compose import compose_config
from pipelinerl.launcher.follow import check_same, wait_for_mark
from pipelinerl.launcher.jobs import Job
from pipelinerl.launcher.lead import Verdict, gather_hosts
from pipelinerl.launcher.nodes import NodeFailed, Nodes, own_rank
from pipelinerl.launcher.supervisor import JobFailedError, NodeState, Supervisor, is_over
from tests.launcher.test_launch_refusals import refused
from tests.ports import free_port

TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": LOOPBACK}


# --- the environment --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "environment", "says"),
    [
        (1, TORCHRUN, "WORLD_SIZE=2 in the environment: set world.nodes=2"),
        (2, {}, "with WORLD_SIZE, RANK, MASTER_ADDR in its environment"),
        (2, TORCHRUN | {"MASTER_ADDR": ""}, "with MASTER_ADDR in its environment"),
        (3, TORCHRUN, "world.nodes=3, but WORLD_SIZE=2"),
        (2, TORCHRUN | {"RANK": "2"}, "RANK=2 is none of the nodes 0 to 1"),
        (2, TORCHRUN | {"RANK": "first"}, "RANK=first in the environment is no number"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(nodes, environment, says):
    with pytest.raises(PlanError, match=says):
        own_rank(nodes, environment)


def test_one_node_is_alone_in_whatever_job_of_one():
    assert own_rank(1, {}) == own_rank(1, {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "somewhere"}) == 0
    assert own_rank(2, TORCHRUN) == 1


@pytest.fixture
def several(monkeypatch) -> list[str]:
    """Settings of a run over two nodes, of which this is one that nobody joins."""
    for name, value in (TORCHRUN | {"MASTER_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)
    return [
        "inference=scripted",
        "trainer=scripted",
        "streams=redis",
        "world.nodes=2",
        "world.node_timeout_s=1",
    ]


def test_the_launcher_refuses_in_one_line(capsys, monkeypatch, tmp_path, several):
    assert "set world.nodes=2" in refused(capsys, f"run_dir={tmp_path}/run")
    assert "inference.host=0.0.0.0: with several nodes" in refused(capsys, *several, "inference.host=0.0.0.0")
    assert "node 0's launcher did not come within" in refused(capsys, *several)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))  # node 1 may yet come to the other
    assert "node 1's launcher did not come within" in refused(capsys, *several)
    monkeypatch.setenv("MASTER_ADDR", "203.0.113.1")  # of no machine
    assert "MASTER_ADDR" in refused(capsys, *several)
    assert not (tmp_path / "run").exists()


# --- what is said and heard -------------------------------------------------------------------


@pytest.fixture
def two() -> Iterator[tuple[Nodes, Nodes]]:
    """The launchers of two nodes, each silent for two seconds at most."""
    port = free_port()
    pair = (Nodes(0, 2, timeout_s=2), Nodes(1, 2, timeout_s=2))
    for nodes, make in zip(pair, (listening_store, connected_store), strict=True):
        nodes.start(lambda make=make: make(LOOPBACK, port, 10), f"{LOOPBACK}:{port}")
    yield pair
    for nodes in reversed(pair):
        if "left" not in nodes.facts(nodes.rank):
            nodes.leave()


def test_what_one_says_the_other_hears(two):
    leader, follower = two
    leader.say(plan={"hosts": [["10.0.0.1", {"server-0": 1}]]})
    assert follower.hear(0, "plan") == {"hosts": [["10.0.0.1", {"server-0": 1}]]}
    follower.say(ready=True)
    assert leader.hear(1, "ready") is True


def test_who_waits_hears_why_it_waits_for_nothing(two):
    leader, follower = two
    follower.say(failure="node 1: there is no such model")
    with pytest.raises(NodeFailed, match="^node 1: there is no such model$"):
        leader.hear(1, "ready")


def test_who_falls_silent_is_lost(two):
    leader, follower = two
    leader.hear(1, "turn")
    follower.leave()
    leader.wait(lambda: leader.loss(1))
    assert (
        leader.loss(1) == "node 1 is lost: nothing was heard of its launcher within world.node_timeout_s=2 s"
    )


def test_node_0_goes_last(two):
    leader, follower = two
    leader.say(status=1)
    follower.hear(0, "status")
    began = time.monotonic()
    follower.leave()
    leader.leave()
    assert time.monotonic() - began < 1.5  # it has not waited for a silence


# --- node 0 decides ---------------------------------------------------------------------------


def test_a_run_is_over_when_the_workers_of_every_node_have_ended():
    assert not is_over([NodeState(servers=1), NodeState(working=True)])
    assert is_over([NodeState(servers=1), NodeState()])
    with pytest.raises(JobFailedError, match="trainer-1 ended with status 1"):
        is_over([NodeState(1, True), NodeState(1, True, failure="trainer-1 ended with status 1")])


def test_servers_are_counted_over_all_nodes():
    none_here = NodeState(working=True, last_log_line="see server-0.log")
    assert not is_over([none_here, NodeState(servers=1)])
    with pytest.raises(JobFailedError, match="no inference server is left; see server-0.log"):
        is_over([none_here, NodeState()])


class Lost(Nodes):
    """Node 0, which hears nothing more of node 1."""

    def __init__(self, state: dict):
        super().__init__(0, 2)
        self._heard[1] = {"state": state}


def test_a_node_of_servers_alone_may_be_lost_and_one_with_a_worker_may_not(capsys):
    shown = []
    verdict = Verdict(Lost({"servers": 2}), shown.append)
    assert not verdict(NodeState(1, working=True)) and not verdict(NodeState(1, working=True))
    assert shown == [1, 1] and capsys.readouterr().err.count("node 1 is lost") == 1
    with pytest.raises(JobFailedError, match="no inference server is left; node 1 is lost"):
        verdict(NodeState(0, working=True, last_log_line=None))
    with pytest.raises(JobFailedError, match="node 1 is lost"):
        Verdict(Lost({"servers": 2, "working": True}), shown.append)(NodeState(1, working=True))


def test_the_node_that_ended_first_has_the_word(two):
    leader, follower = two
    follower.say(state={"working": True})
    leader.hear(1, "state")
    echo = NodeState(1, working=True, failure="trainer-0 ended with status 1")
    threading.Timer(0.3, follower.say, kwargs={"failure": "node 1 was interrupted"}).start()
    with pytest.raises(JobFailedError, match="^node 1 was interrupted$"):
        Verdict(leader, print)(echo)


def test_the_last_log_line_of_a_job_is_its_error_also_where_torch_names_the_rank(tmp_path):
    says = "echo '[rank0]: RuntimeError: a peer is gone'; echo Unclosed connector; exit 1"
    job = Job("trainer-0", "trainer", ("/bin/sh", "-c", says), {})
    with pytest.raises(JobFailedError, match="ended with status 1; .*RuntimeError: a peer is gone"):
        Supervisor([job], tmp_path, 1).run(lambda state: is_over([replace(state, servers=1)]))


# --- what must be the same on every node ------------------------------------------------------


def test_the_key_that_differs_is_named():
    check_same({"a": {"b": [1]}}, {"a": {"b": [1]}})
    with pytest.raises(PlanError, match="a.b is 1 here and 2 on node 0"):
        check_same({"a": {"b": 1}, "c": 3}, {"a": {"b": 2}, "c": 3})
    with pytest.raises(PlanError, match="a.b is None here and 2 on node 0"):
        check_same({"a": {}}, {"a": {"b": 2}})


def test_a_run_directory_that_is_not_shared_is_refused(tmp_path):
    nodes = Nodes(1, 2, timeout_s=0.1)
    (tmp_path / "there").touch()
    wait_for_mark(tmp_path / "there", nodes)
    with pytest.raises(PlanError, match="it must lie on a file system that all nodes share"):
        wait_for_mark(tmp_path / "mark", nodes)


def test_addresses_that_do_not_reach_each_other_are_refused():
    config = compose_config(["inference=scripted", "streams=redis", "world.nodes=2"])
    nodes = Nodes(0, 2)
    nodes._heard[1] = {"host": ["10.0.0.2", {}]}
    with pytest.raises(PlanError, match="the nodes' addresses are 10.0.0.2, 127.0.0.1: MASTER_ADDR must be"):
        gather_hosts(config, nodes)
    nodes._heard[1] = {"host": [LOOPBACK, {}]}
    assert [host.address for host in gather_hosts(config, nodes)] == [LOOPBACK, LOOPBACK]


def test_the_own_address_is_that_of_the_route():
    assert own_address("localhost") == own_address("127.0.0.1") == LOOPBACK


def test_a_job_inherits_nothing_of_the_launchers_place_among_others(tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    job = Job("actor", "actor", ("/usr/bin/env",), {"RANK": "1"})
    Supervisor([job], tmp_path, 1).run(lambda state: not state.working)
    environment = dict(
        line.split("=", 1) for line in (tmp_path / "logs" / "actor.log").read_text().splitlines()
    )
    assert [name for name, value in environment.items() if value == "7"] == []
    assert environment["RANK"] == "1" and environment["NCCL_SOCKET_IFNAME"] == "eth0"


def test_the_plan_of_several_nodes_is_shown_anywhere(capsys, tmp_path, monkeypatch):
    (tmp_path / "redis-server").touch(0o755)  # a plan starts none
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    counts = ["world.nodes=2", "world.servers=2", "world.trainer_ranks=2"]
    settings = ["plan=true", "streams=redis", "inference=scripted", "trainer=scripted"]
    assert launch.main([*settings, *counts, f"run_dir={tmp_path}/run"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " node " in line]
    assert [line.split()[:3] for line in lines] == [
        ["server-0", "node", "0"],
        ["server-1", "node", "1"],
        ["actor", "node", "0"],
        ["preprocessor", "node", "0"],
        ["trainer-0", "node", "0"],
        ["trainer-1", "node", "1"],
        ["judging", "node", "0"],
    ]
    assert "--host node-1" in lines[1] and not (tmp_path / "run").exists()
