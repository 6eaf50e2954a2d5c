"""What the transports of stored weights make of a plan: jobs, options, and the shared directory."""

import fcntl
import signal
import socket
import subprocess
import sys

import pytest

from contracts.support.token import TOKEN_VARIABLE
from extensions.stored_weights.launcher.shared_store import LOCK, PREFIX, made_store, store_name
from extensions.stored_weights.store_location import ORIGIN_VARIABLE, STORE_VARIABLE
from extensions.stored_weights.transport import Relay
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.base import Placement
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.launcher.jobs import Job, JobPlanner
from pipelinerl.launcher.resource_requests import job_specs
from pipelinerl.paths import ROOT
from pipelinerl.weight_transport import transport_of

RELAYS = "weights.relays=['https://relay-1/store/', 'http://10.0.0.2:81']"


def test_a_server_may_be_as_far_behind_as_the_lag_allows_unless_it_is_set():
    assert Relay(compose_config(["weights=relay"])).most_behind == 4
    assert Relay(compose_config(["weights=relay", "weights.max_behind=1"])).most_behind == 1
    assert Relay(compose_config(["weights=relay", "max_lag=null"])).most_behind is None
    assert Relay(compose_config(["weights=relay", "max_lag=null", "weights.max_behind=7"])).most_behind == 7


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ([], set()),
        (["weights=shared"], {"shared"}),
        (["weights=relay"], {"relay"}),
        (["weights=relay", "weights.dtype=bfloat16", "weights.deltas=true"], {"relay", "delta"}),
    ],
)
def test_servers_must_declare_what_the_transport_needs(settings, needs):
    config = compose_config(settings)
    assert transport_of(config).needed_capabilities().keys() == needs


def jobs_of(tmp_path, *settings: str) -> dict[str, Job]:
    config = compose_config(["model.path=m", f"inference.python={sys.executable}", *settings])
    placements = {
        request.name: Placement("node", "10.0.0.1", 90 + number)
        for number, (_, request) in enumerate(job_specs(config))
    }
    return {job.name: job for job in JobPlanner(config, tmp_path, "secret", {}).plan(placements)}


def options(job: Job, name: str) -> list[str]:
    """Returns the values of an option of the command."""
    rest = job.command[job.command.index(name) + 1 :]
    end = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
    return list(rest[:end])


def test_with_relays_there_is_an_origin_without_secrets_and_servers_may_read_it_and_them(tmp_path):
    jobs = jobs_of(tmp_path, "weights=relay", RELAYS)
    url = f"http://10.0.0.1:{jobs['origin'].placement.port}"
    store = str(tmp_path / "weights")
    assert jobs["origin"].command[1:4] == ("-m", "extensions.stored_weights.store.origin", store)
    assert options(jobs["origin"], "--host") == ["10.0.0.1"]
    assert options(jobs["server-0"], "--weight-sources") == [
        url,
        "https://relay-1/store",
        "http://10.0.0.2:81",
    ]
    assert options(jobs["server-0"], "--weight-directory") == [str(tmp_path / "pulled" / "server-0")]
    environment = jobs["trainer-0"].environment
    assert (environment[STORE_VARIABLE], environment[ORIGIN_VARIABLE]) == (store, url)
    origin = jobs["origin"]
    assert origin.has_whole_environment and TOKEN_VARIABLE not in origin.environment
    assert "secret" not in str(origin.environment.values())


def test_the_origin_is_on_the_node_of_the_trainer_and_has_the_configured_port():
    members = job_specs(compose_config(["weights=relay", "weights.origin_port=8123"]))
    requests = {request.name: request for _, request in members}
    assert (requests["origin"].group, requests["origin"].bundle) == (requests["trainer-0"].group, "trainer-0")
    assert requests["origin"].port == 8123


@pytest.mark.parametrize(
    ("role", "key"), [("transport", "weights.origin_port"), ("server", "inference.base_port")]
)
def test_a_port_that_is_in_use_is_named_by_its_key(role, key):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address, port = taken.getsockname()
        requests = [w for r, w in job_specs(compose_config(["weights=relay", f"{key}={port}"])) if r == role]
        words = f"cannot listen at {address}:{port}: Address already in use; set {key} to another"
        with pytest.raises(PlanError, match=words):
            LocalExecutor().request(requests)


def test_without_a_store_no_job_hears_of_one(tmp_path):
    jobs = jobs_of(tmp_path)
    assert "origin" not in jobs and "--weight-sources" not in jobs["server-0"].command
    assert not jobs["trainer-0"].environment.keys() & {STORE_VARIABLE, ORIGIN_VARIABLE}


def test_a_shared_store_has_a_name_that_nobody_guesses_and_servers_may_read_it(tmp_path):
    jobs = jobs_of(tmp_path, "weights=shared", f"weights.directory={tmp_path}")
    store = jobs["trainer-0"].environment[STORE_VARIABLE]
    assert store == str(tmp_path / store_name(tmp_path, "secret")) != store_name(tmp_path, "other")
    assert options(jobs["server-0"], "--weight-sources") == [f"file://{store}"]
    assert (
        jobs_of(tmp_path, "weights=shared")["trainer-0"].environment[STORE_VARIABLE].startswith("/dev/shm/")
    )


def test_the_shared_store_is_private_and_gone_at_the_end(tmp_path):
    store = tmp_path / f"{PREFIX}0"
    with made_store(store):
        assert store.stat().st_mode & 0o777 == 0o700
        (store / "objects").mkdir()
        (store / "objects" / "a").touch()
    assert not store.exists()


MAKES = """
import sys
from pathlib import Path
from extensions.stored_weights.store_location import ORIGIN_VARIABLE, STORE_VARIABLE
from extensions.stored_weights.transport import Relay
from extensions.stored_weights.launcher.shared_store import made_store
with made_store(Path(sys.argv[1])):
    print("made", flush=True)
    input()
"""


def test_the_store_of_a_launcher_that_was_killed_is_removed_by_the_next_one(tmp_path):
    abandoned = tmp_path / f"{PREFIX}killed"
    held = tmp_path / f"{PREFIX}alive"
    foreign = tmp_path / f"{PREFIX}of-something-else"
    foreign.mkdir()
    held.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", MAKES, str(abandoned)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout.readline() == "made\n"
        with made_store(tmp_path / f"{PREFIX}beside"):
            assert abandoned.exists()
        launcher.send_signal(signal.SIGKILL)
    assert abandoned.exists()
    with (held / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with made_store(tmp_path / f"{PREFIX}next"):
            assert not abandoned.exists() and held.exists() and foreign.exists()


def test_a_shared_store_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    store = tmp_path / f"{PREFIX}0"
    store.mkdir()
    (store / "file").touch()
    for there in (tmp_path / "file" / "store", store):
        with pytest.raises(PlanError, match="cannot be made"), made_store(there):
            pass
    assert (store / "file").exists()
