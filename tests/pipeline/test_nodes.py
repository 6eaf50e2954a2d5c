"""Whole runs over two nodes: two launchers on this machine, each of which believes to have one of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from contracts.conformance.tiny_model import make_tiny_model
from contracts.records import StepClosed, WeightsPublished
from pipelinerl.addresses import LOOPBACK
from pipelinerl.paths import ROOT
from pipelinerl.process import REDIS_VARIABLE
from tests.pipeline.runs import (
    MINIATURE,
    assert_accounted,
    finish,
    launch,
    processes_of,
    records,
    wait_for,
    wait_for_record,
)
from tests.ports import free_port

pytestmark = pytest.mark.engines

Launcher = subprocess.Popen[str]
TWO_NODES = ("streams=redis", "world.nodes=2", "world.servers=2")
RANKS_ON_BOTH = "world.trainer_ranks=2"
REAL = (
    "~domain",
    "+domain._target_=tests.letters_domain.LettersDomain",
    "batch_size=32",
    "optimizer.lr=1e-2",
    "sampling.max_tokens=12",
    "eval.problems=32",
    "filters=[]",
)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    yield
    wait_for(lambda: processes_of(tmp_path) == [], within_s=20)


def start_nodes(run_dir: Path, *overrides: str, on_node_1: tuple[str, ...] = ()) -> tuple[Launcher, Launcher]:
    """As torchrun or srun start them; the second's is there before the first's."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    command = (run_dir, *TWO_NODES, *overrides)
    second = launch(*command, *on_node_1, environment=job | {"RANK": "1"})
    return launch(*command, environment=job | {"RANK": "0"}), second


def ended_well(launchers: tuple[Launcher, Launcher]) -> None:
    for launcher in launchers:
        status, err = finish(launcher)
        assert status == 0, err


def servers_of(run_dir: Path) -> list[set[str]]:
    published = [r for r in records(run_dir, "trainer_events") if isinstance(r, WeightsPublished)]
    return [set(p.servers) for p in published]


def test_two_nodes_of_one_run(tmp_path):
    run = tmp_path / "run"
    launchers = start_nodes(run, *MINIATURE, "max_steps=6")
    wait_for_record(run, "trainer_events", StepClosed)
    lines = [first_line(launcher) for launcher in launchers]
    assert lines[0] == f"run directory: {run}"
    assert lines[1] == f"node 1 runs server-1; run directory: {run}"
    ended_well(launchers)
    assert len(assert_accounted(run)["trained"]) == 6 * 8
    assert all(len(servers) == 2 for servers in servers_of(run)) and len(servers_of(run)) == 7
    assert json.loads((run / "summary.json").read_text())["accounting_errors"] == []
    assert not list(run.glob(".mark*"))


def first_line(launcher: Launcher) -> str:
    return launcher.stdout.readline().strip()


def test_real_engines_on_both_nodes_and_a_connection_to_redis_that_breaks(tmp_path):
    """A transformers server and an FSDP rank on each."""
    run = tmp_path / "run"
    make_tiny_model(tmp_path / "model")
    launchers = start_nodes(run, f"model.path={tmp_path}/model", *REAL, RANKS_ON_BOTH, "max_steps=6")
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    admin = redis.Redis.from_url((run / "redis" / "url").read_text())
    writers = [client for client in admin.client_list() if ":rollouts" in client["name"]]
    assert admin.client_kill_filter(_id=writers[0]["id"]) == 1
    ended_well(launchers)
    assert len(assert_accounted(run)["trained"]) == 6 * 4
    assert all(len(servers) == 2 for servers in servers_of(run)) and len(servers_of(run)) == 7
    summary = json.loads((run / "summary.json").read_text())
    assert summary["logprob_gap_mean_abs"] < 1e-5 and summary["rollouts_lost"] == 0


def test_a_run_over_two_nodes_is_stopped_and_resumed(tmp_path):
    run = tmp_path / "run"
    launchers = start_nodes(run, *MINIATURE, RANKS_ON_BOTH, "max_steps=8", "checkpoint.every=2")
    wait_for_record(run, "trainer_events", StepClosed, count=3)
    launchers[0].send_signal(signal.SIGTERM)
    assert [finish(launcher)[0] for launcher in launchers] == [130, 130]
    assert not processes_of(run)
    assert_accounted(run, ended=False)
    ended_well(start_nodes(run, "resume=true"))
    assert len(assert_accounted(run)["trained"]) == 8 * 8
    assert len(records(run, "launcher_events")) == 1


@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGKILL, "trainer-|node 1 is lost"), (signal.SIGTERM, "node 1 was interrupted")],
)
def test_the_end_of_node_1_ends_the_run_in_words(tmp_path, number, says):
    run = tmp_path / "run"
    first, second = start_nodes(run, *MINIATURE, RANKS_ON_BOTH, "max_steps=1000", "world.node_timeout_s=10")
    wait_for_record(run, "trainer_events", StepClosed)
    second.send_signal(number)
    status, err = finish(first, within_s=60)
    assert status == 1 and any(word in err for word in says.split("|")), err
    assert finish(second)[0] == (-9 if number == signal.SIGKILL else 130)
    assert_accounted(run, ended=False)
    assert (run / "summary.json").exists()


def test_a_node_that_has_servers_alone_may_be_lost(tmp_path):
    run = tmp_path / "run"
    first, second = start_nodes(run, *MINIATURE, "max_steps=100", "world.node_timeout_s=3")
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    second.kill()
    finish(second)
    status, err = finish(first)
    assert status == 0 and "node 1 is lost" in err, err
    assert [len(servers) for servers in (servers_of(run)[0], servers_of(run)[-1])] == [2, 1]
    assert_accounted(run)


def test_the_death_of_node_0_ends_node_1_within_seconds(tmp_path):
    run = tmp_path / "run"
    first, second = start_nodes(run, *MINIATURE, RANKS_ON_BOTH, "max_steps=1000")
    wait_for_record(run, "trainer_events", StepClosed)
    first.kill()
    status, err = finish(second, within_s=20)
    assert status == 1 and "and with it node 0's launcher" in err and len(err.splitlines()) == 1, err
    finish(first)


def test_what_one_node_refuses_all_refuse(tmp_path):
    launchers = start_nodes(tmp_path / "run", *MINIATURE, "max_steps=5", on_node_1=("max_steps=6",))
    line = "launch.py: node 1: max_steps is 6 here and 5 on node 0: give every node the same command\n"
    assert [finish(launcher) for launcher in launchers] == [(2, line), (2, line.replace("node 1: ", "", 1))]
    assert not (tmp_path / "run").exists()


def test_under_torchrun(tmp_path):
    """Whose own store is at MASTER_ADDR:MASTER_PORT."""
    run, port = tmp_path / "run", free_port()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--master-addr", LOOPBACK, "--master-port", str(port)]
    command = ["launch.py", f"run_dir={run}", *MINIATURE, *TWO_NODES, RANKS_ON_BOTH, "max_steps=4"]
    launchers = tuple(
        subprocess.Popen(
            [*torchrun, "--node-rank", str(rank), *command], cwd=ROOT, text=True, stdout=-1, stderr=-1
        )
        for rank in (0, 1)
    )
    ended_well(launchers)
    assert len(assert_accounted(run)["trained"]) == 4 * 8
