"""The manifest for Kubernetes offers what its own run wants. Nothing of it runs here."""

import re
import shlex

import pytest
import yaml

from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT

MANIFEST = ROOT / "examples" / "kuberay" / "rayjob.yaml"


@pytest.fixture(scope="module")
def documents() -> dict[str, dict]:
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def config(documents):
    """The configuration of the command that begins the run."""
    commands = shlex.split(documents["ConfigMap"]["data"]["run.sh"].replace("\\\n", " "))
    return compose_config(commands[len(commands) - commands[::-1].index("launch.py") :])


@pytest.fixture(scope="module")
def job(documents) -> dict:
    return documents["RayJob"]["spec"]


@pytest.fixture(scope="module")
def groups(job) -> dict[str, dict]:
    return {group["groupName"]: group for group in job["rayClusterSpec"]["workerGroupSpecs"]}


def gpus(group: dict) -> int:
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    return int(container["resources"]["limits"]["nvidia.com/gpu"])


def test_the_cluster_asks_for_a_token_and_has_the_version_of_the_extra_and_a_new_one_resumes(documents, job):
    begins = documents["ConfigMap"]["data"]["run.sh"]
    assert begins.index("resume=true") < begins.index("executor=ray")
    cluster = job["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    pinned = re.search(r'"ray==([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert cluster["rayVersion"] == pinned


def test_nothing_is_placed_on_the_head_and_it_is_not_started_again(job):
    head = job["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert "nvidia.com/gpu" not in str(head)
    assert head["template"]["spec"]["restartPolicy"] == "Never"
    names = {variable["name"] for variable in head["template"]["spec"]["containers"][0]["env"]}
    shell = (ROOT / "examples" / "slurm" / "run.sbatch").read_text()
    assert {*re.findall(r"RAY_health_check_\w+(?==)", shell)} <= names


def test_the_ranks_have_nodes_of_their_own_that_do_not_come_and_go(config, groups):
    trainers = groups["trainers"]
    assert trainers["minReplicas"] == trainers["maxReplicas"] == trainers["replicas"]
    assert trainers["replicas"] * gpus(trainers) == config.world.trainer_ranks
    assert gpus(trainers) == config.world.gpus


def test_the_servers_nodes_come_and_go_within_what_the_run_bears(config, job, groups):
    servers = groups["servers"]
    a_node = gpus(servers) // config.inference.gpus_per_server
    assert servers["minReplicas"] * a_node <= config.world.servers_min <= config.world.servers
    assert servers["maxReplicas"] * a_node == config.world.servers
    spec = servers["template"]["spec"]
    drains_s = int(spec["containers"][0]["env"][0]["value"])
    assert spec["containers"][0]["env"][0]["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    assert drains_s < spec["terminationGracePeriodSeconds"]
    assert job["rayClusterSpec"]["autoscalerOptions"]["idleTimeoutSeconds"] > config.executor.place_timeout_s
