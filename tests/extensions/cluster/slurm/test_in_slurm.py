"""The script in a real SLURM, whose nodes are all on this machine: real Ray, and whole runs in miniature."""

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from contracts.records import ServerJoined, ServerLeft
from tests.extensions.cluster.slurm.box import SlurmBox, missing_programs, processes
from tests.extensions.cluster.slurm.script import edited
from tests.pipeline.runs import MINIATURE, assert_accounted, records

SERVER = "inference_adapters.scripted"
# A node has two cores, so each has room for a server, or a rank, or the actor with the preprocessor.
RUN = (*MINIATURE, "world.threads=2", "executor.forward_env=[PYTHONPATH]")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(missing_programs()), reason=f"no SLURM here: {missing_programs()}"),
]


@pytest.fixture
def box() -> Iterator[SlurmBox]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory, SlurmBox(Path(directory), 5) as box:
        yield box


def submit(box: SlurmBox, run_dir: Path, *overrides: str) -> str:
    """Submits a run over four nodes; returns the number of its job."""
    return box.submit(edited(box.directory, run_dir, shlex.join(RUN)), *overrides)


def submit_join(box: SlurmBox) -> str:
    """Submits one more node for the run; returns the number of the job."""
    return box.submit("--nodes=1", box.directory / "run.sbatch", "join")


def nodes_of_servers(box: SlurmBox) -> list[str]:
    return [node for node in box.nodes if processes(node, SERVER)]


def steps_made(run_dir: Path) -> int:
    metrics = run_dir / "metrics" / "trainer.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def what_is_left(box: SlurmBox) -> list[str]:
    """Returns the command lines of what runs on the nodes beside SLURM's daemons."""
    daemons = [pid for node in box.nodes for pid in processes(node, "slurm")]
    found = []
    for pid in (pid for node in box.nodes for pid in processes(node) if pid not in daemons):
        with suppress(OSError):
            found.append(f"{pid}: {Path(f'/proc/{pid}/cmdline').read_text()}".replace("\0", " "))
    return found


def test_a_run_loses_a_node_and_another_joins(box, tmp_path):
    run_dir = tmp_path / "one"
    job = submit(box, run_dir, "world.servers=2", "max_steps=150")
    box.wait(lambda: len(nodes_of_servers(box)) == 2)
    box.wait(lambda: steps_made(run_dir) > 2)
    lost = next(node for node in nodes_of_servers(box) if node != "n0")
    box.lose(lost)
    shutil.rmtree(f"/tmp/ray-{int(job) + int(lost[1:])}")  # nobody is left there to do it
    joined = submit_join(box)
    box.wait(lambda: "n4" in nodes_of_servers(box))

    assert box.wait_for_end(job) == ("COMPLETED", 0), box.log(job)
    assert box.wait_for_end(joined) == ("COMPLETED", 0), box.log(joined)
    box.wait(lambda: not what_is_left(box))
    assert not any(
        os.path.exists(f"/tmp/ray-{number}") for number in (int(job), int(job) + 1, int(joined) + 4)
    )
    assert_accounted(run_dir)
    events = records(run_dir, "launcher_events")
    (left,) = [event for event in events if isinstance(event, ServerLeft) and event.why == "lost"]
    urls = [event.url for event in events if isinstance(event, ServerJoined)]
    assert len({*urls}) == 3
    assert json.loads((run_dir / "summary.json").read_text())["optimizer_steps"] == 150


def test_a_node_that_joined_drains_and_nothing_is_left_of_a_run_that_slurm_ends(box, tmp_path):
    run_dir = tmp_path / "one"
    job = submit(box, run_dir, "world.servers=3", "world.servers_min=2", "max_steps=100000")
    box.wait(lambda: len(nodes_of_servers(box)) == 2)
    joined = submit_join(box)
    box.wait(lambda: "n4" in nodes_of_servers(box))
    box.run("scancel", "--batch", "--signal=TERM", joined)
    assert box.wait_for_end(joined) == ("COMPLETED", 0), box.log(joined)
    box.run("scancel", "--batch", "--signal=TERM", job)  # as at the time limit
    assert box.wait_for_end(job) == ("FAILED", 130), box.log(job)
    box.wait(lambda: not what_is_left(box))
    assert not os.path.exists(f"/tmp/ray-{job}")
    events = records(run_dir, "launcher_events")
    assert [event.why for event in events if isinstance(event, ServerLeft)][0] == "draining"
