"""The script in bash, with real Ray. Small programs stand in for SLURM's, and a driver for launch.py."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from pipelinerl.launcher.composing.compose import compose_config
from tests.extensions.cluster.slurm.script import SCRIPT, edited
from tests.pipeline.runs import wait_for

HERE = Path(__file__).parent


def start(tmp_path: Path, job: int, *arguments: str) -> subprocess.Popen[str]:
    """Starts the script of a run over two nodes."""
    shutil.copy(HERE / "driver.py", tmp_path / "launch.py")
    script = edited(tmp_path, tmp_path / "one", "nodes=2", project=tmp_path)
    environment = os.environ | {
        "PATH": f"{HERE / 'bin'}:{os.environ['PATH']}",
        "STEPS": str(tmp_path / "steps"),
        "SLURM_JOB_ID": str(job),
        "RUNNING": str(os.getpid() * 2),  # the first job of each test
        "SLURM_JOB_NODELIST": "n0,n1",
        "SLURM_GPUS_PER_NODE": "h100:2",
    }
    return subprocess.Popen(["bash", script, *arguments], env=environment, start_new_session=True)


def test_its_arguments_are_understood():
    """They are those of the file as it stands."""
    (arguments,) = re.findall(r"^arguments=\((.*?)\)", SCRIPT.read_text(), re.MULTILINE)
    compose_config(["executor=ray", "streams=redis", *shlex.split(arguments)])


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [("run_dir", "runs/one", "set an absolute path"), ("project", "/nope", "call sbatch in the checkout"),
     ("python", "/nope", "there is no such program")],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_one_line(tmp_path, setting, value, words):
    script = edited(tmp_path, tmp_path / "one", "")
    script.write_text(re.sub(f"^{setting}=.*", f"{setting}={value}", script.read_text(), flags=re.MULTILINE))
    done = subprocess.run(["bash", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"run.sbatch: {setting}={value}: ") and words in done.stderr
    assert done.stderr.count("\n") == 1


def what_was_said(tmp_path: Path) -> dict[str, list]:
    """Returns what the driver has written, once it has."""
    wait_for((tmp_path / "one.json").exists)
    return json.loads((tmp_path / "one.json").read_text())


def files(directory: Path) -> dict[Path, str]:
    return {
        path: path.read_text() for path in directory.rglob("*") if path.suffix != ".log" and path.is_file()
    }


def is_left(job: int) -> list[str]:
    """Returns what is left of a job: directories, and processes that name one."""
    names = [f"/tmp/ray-{job + node}" for node in range(2)]
    found = [name for name in names if os.path.exists(name)]
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        found += [command for name in names if f"{name}/" in command]
    return found


@pytest.mark.engines
def test_a_directory_that_was_there_before_is_not_believed(tmp_path):
    """Whoever guesses the number of a job could say in it where the head is."""
    job = os.getpid() * 2
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ray_current_cluster").write_text("127.0.0.1:1")
    Path(f"/tmp/ray-{job}").symlink_to(elsewhere)
    try:
        assert start(tmp_path, job).wait() == 2
    finally:
        os.unlink(f"/tmp/ray-{job}")
    assert "is another user's" in (tmp_path / "one.ray" / str(job) / "n0.log").read_text()
    assert not (tmp_path / "one.json").exists()


@pytest.mark.engines
@pytest.mark.long
@pytest.mark.parametrize("loss", ["the time limit", "the head"])
def test_the_script_starts_ray_on_every_node_and_ends_as_the_run_does(tmp_path, loss):
    """The run is told of the time limit, and ends without Ray's head.

    Ray itself gives a node 30 s to start, which a slow machine may exceed.
    """
    job = os.getpid() * 2
    last = tmp_path / "one.ray" / "job"
    last.parent.mkdir()
    last.write_text(f"{job + 4}\n")  # of which SLURM knows no more
    odd = "x=['a b', \"$HOME\"]"
    process = start(tmp_path, job, odd)
    said = what_was_said(tmp_path)
    assert said["arguments"] == [
        f"run_dir={tmp_path / 'one'}",
        "executor=ray",
        "streams=redis",
        "nodes=2",
        odd,
    ]
    assert said["gpus"] == [2, 2]
    of_job = tmp_path / "one.ray" / str(job)
    assert (of_job / "token").stat().st_mode & 0o777 == 0o600
    if loss == "the time limit":
        before = files(tmp_path / "one.ray")
        assert start(tmp_path, job + 2).wait() == 2  # a second job of the same run
        assert files(tmp_path / "one.ray") == before
        process.send_signal(signal.SIGTERM)
    else:
        head_step = int((tmp_path / "steps").read_text().split()[0])
        os.kill(head_step, signal.SIGTERM)
    assert process.wait() == 7
    assert not (of_job / "head").exists() and not last.exists()
    wait_for(lambda: not is_left(job))
