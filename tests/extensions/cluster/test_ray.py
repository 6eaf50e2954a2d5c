"""The executor of a Ray cluster, on real raylets of this machine."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ray_nodes import RayNodes
from extensions.cluster.on_ray.executor import RayExecutor, RayOptions
from pipelinerl.launcher.executors.base import (
    Draining,
    Lost,
    Placed,
    Process,
    ResourceRequest,
    Running,
    Waiting,
)
from tests.launcher.executors.kit import *  # noqa: F403
from tests.launcher.executors.kit import ORPHAN, Bench, start_owner
from tests.launcher.executors.refusals import *  # noqa: F403
from tests.pipeline.runs import (
    MINIATURE,
    assert_accounted,
    finish,
    job_pid_parent,
    launch_command,
    processes_of,
    wait_for,
)

pytestmark = pytest.mark.engines
OF_THE_NODE = {"OF_THE_NODE": "here", "RANK": "0", "PIPELINERL_REDIS_URL": "redis://x"}
RUN = (*MINIATURE, "executor=ray", "streams=redis", "world.servers=2")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """The head has a place for the workers of a run, and the other node for two servers."""
    with RayNodes(head_cpus=3, **OF_THE_NODE) as nodes:
        nodes.start(cpus=2, gpus=2, CUDA_VISIBLE_DEVICES="4,5", **OF_THE_NODE)
        yield nodes


@pytest.fixture(scope="module")
def executor(nodes: RayNodes) -> Iterator[RayExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in nodes.environment.items():
            patch.setenv(name, value)
        executor = RayExecutor(RayOptions())
        yield executor
        executor.close()


@pytest.fixture
def bench(executor: RayExecutor, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(executor, tmp_path, "ray")
    executor.release([*executor.poll()])


def test_a_keeper_that_is_killed_takes_its_job_along(bench: Bench, nodes: RayNodes):
    bench.place()
    bench.start(ORPHAN + "wait")
    bench.says("started")
    workers = processes_of(nodes.directory)
    (keeper,) = [pid for pid in workers if "RayKeeper" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(keeper, signal.SIGKILL)
    bench.gone()
    assert "its worker process has died" in bench.wait(Lost).why


def test_the_jobs_of_a_group_are_placed_together_or_not_at_all(bench: Bench, executor: RayExecutor):
    pair = [ResourceRequest("a", "pair", "a", cpus=3), ResourceRequest("b", "pair", "b", cpus=2)]
    bench.place(cpus=1)
    executor.request(pair)
    executor.request([ResourceRequest("beside", "beside", "beside", cpus=2)])
    wait_for(lambda: isinstance(executor.poll()["beside"], Placed))
    state = executor.poll()["a"]
    assert isinstance(state, Waiting)
    assert state.needs.startswith("{CPU: 3} + {CPU: 2}; free on 2 nodes: ")
    executor.release(["beside", "job"])
    wait_for(lambda: all(isinstance(state, Placed) for state in executor.poll().values()))
    assert len({state.placement.node for state in executor.poll().values()}) == 2


def test_what_the_cluster_has_is_told(nodes: RayNodes, executor: RayExecutor):
    requests = [ResourceRequest(f"server-{i}", f"server-{i}", f"server-{i}", cpus=2) for i in range(3)]
    capacity = wait_for(lambda: "(5 free)" in (now := executor.capacity(requests)).summary and now)
    secured = f"ray 2.60.0 at {nodes.address}, token authentication"
    assert capacity.summary == f"{secured}: 2 nodes, 2 GPUs (2 free), 5 CPUs (5 free)"
    free = sorted(line.partition("): ")[2] for line in capacity.nodes)
    assert free == ["{CPU: 3} of {CPU: 3} free", "{GPU: 2, CPU: 2} of {GPU: 2, CPU: 2} free"]
    assert capacity.fits == ["fits now: 2 of 3 groups; server-2 waits for {CPU: 2}"]


def test_a_whole_run(nodes: RayNodes, tmp_path: Path):
    run = tmp_path / "run"
    status, err = finish(launch_command(run, *RUN, "max_steps=4", environment=nodes.environment))
    assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == 4 * 8
    logs = {path.name for path in (run / "logs").iterdir()}
    assert logs == {f"{job}.log" for job in ("server-0", "server-1", "actor", "preprocessor", "trainer-0")}
    assert not processes_of(run)


def test_no_secret_is_kept_by_the_cluster(bench: Bench, nodes: RayNodes):
    secret = "a-secret-of-this-run"
    bench.place()
    bench.executor.start("job", Process(("/bin/sleep", "1000"), {"TOKEN": secret}, bench.log))
    bench.wait(Running)
    job = wait_for(lambda: [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if has(p, secret)])
    assert len(job) == 1, "the job alone is given it"
    files = [path for path in nodes.directory.rglob("*") if path.is_file()]
    assert any(path.name == "raylet.out" for path in files)
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert secret not in state_of_the_cluster()
    bench.executor.release(["job"])


def has(pid: int, secret: str) -> bool:
    """Whether the command line or the environment of a process has the secret, this one's apart."""
    try:
        shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return secret.encode() in shown


def state_of_the_cluster() -> str:
    """Returns what the head tells of actors, groups and its own store, as bytes in words."""
    import ray
    from ray._private.state import state
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

    store = [
        (key, _internal_kv_get(key, namespace=space))
        for space in (None, "fun", "cluster", "job")
        for key in _internal_kv_list(b"", namespace=space)
    ]
    actors = state.actor_table(None)
    assert actors
    assert any(value for _, value in store)
    return repr((actors, ray.util.placement_group_table(), store))


def test_the_node_that_a_job_leaves_is_announced(bench: Bench, nodes: RayNodes):
    """A node that drains, then its end."""
    known = len(bench.executor.capacity([]).nodes)
    spare = nodes.start(cpus=4)
    wait_for(lambda: len(bench.executor.capacity([]).nodes) > known)
    bench.place(cpus=3.5)
    bench.start("sleep 1000")
    running = bench.wait(Running)
    assert running.placement.interface != "lo"
    nodes.drain(spare, seconds=60)
    draining = bench.wait(Draining)
    assert 0 < draining.deadline - time.time() <= 60
    os.kill(spare, signal.SIGKILL)
    lost = bench.wait(Lost)
    assert lost.why.startswith(running.placement.node)
    bench.gone()
    bench.executor.release(["job"])
    bench.place()
    assert bench.run("exit 4") == 4


def test_nothing_outlives_an_owner_that_is_killed_where_the_node_is_silent(bench: Bench, nodes: RayNodes):
    """The last test of these: a node that is silent for long is dead."""
    owner = start_owner(bench, ORPHAN + "wait")
    bench.says("started")
    workers = processes_of(nodes.directory)
    (keeper,) = [pid for pid in workers if "RayKeeper" in Path(f"/proc/{pid}/cmdline").read_text()]
    raylet = job_pid_parent(keeper)
    os.kill(raylet, signal.SIGSTOP)
    try:
        owner.kill()
        owner.wait()
        bench.gone()
    finally:
        os.kill(raylet, signal.SIGCONT)
