"""A separate SLURM on this machine: a controller, and one daemon per simulated node. It needs root."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from contracts.support.ports import ReservedPort

GOING_ON = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
PROGRAMS = ("slurmctld", "slurmd", "sbatch")
CONFIGURATION = """
ClusterName=box
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
FirstJobId={first_job}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={directory}/prolog.sh
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
"""
# The nodes share one machine, so each needs its own ports and directory, as if they were in several jobs.
PROLOG = """#!/bin/bash
[[ $SLURM_STEP_ID =~ ^[0-9]{1,4}$ ]] && echo "export SLURM_JOB_ID=$((SLURM_JOB_ID + ${SLURMD_NODENAME#n}))"
exit 0
"""


def missing_programs() -> str:
    """Returns the programs that this machine lacks, or an empty text."""
    if os.geteuid():
        return "only root starts SLURM's daemons"
    return ", ".join(program for program in PROGRAMS if not shutil.which(program))


class SlurmBox:
    """A controller and daemons that run as long as the context."""

    def __init__(self, directory: Path, nodes: int):
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(nodes)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {"SLURM_CONF": str(directory / "slurm.conf")}

    def __enter__(self) -> "SlurmBox":
        self._configure()
        self._start("slurmctld", "-D")
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node)
        self.wait(lambda: self.run("sinfo", "-h", "-o", "%T %D") == f"idle {len(self.nodes)}")
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user=root")
        self.wait(lambda: not self.run("squeue", "-h"))
        for daemon in self._daemons.values():
            daemon.terminate()
            daemon.wait()

    def _configure(self) -> None:
        with ReservedPort() as port:
            text = CONFIGURATION.format(
                host=socket.gethostname(),
                port=port.number,
                first_job=10 * os.getpid(),
                directory=self.directory,
            )
        for node in self.nodes:
            with ReservedPort() as port:
                own = f"NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port.number}"
                text += f"NodeName={node} {own} CPUs=2 State=UNKNOWN\n"
        text += "PartitionName=all Nodes=ALL Default=YES\n"
        (self.directory / "state").mkdir()
        (self.directory / "slurm.conf").write_text(text)
        prolog = self.directory / "prolog.sh"
        prolog.write_text(PROLOG)
        prolog.chmod(0o755)

    def _start(self, *command: str) -> None:
        log = (self.directory / "daemons.log").open("ab")
        self._daemons[command[-1]] = subprocess.Popen(
            command, env=self._environment, stdout=log, stderr=log, start_new_session=True
        )

    def wait(self, condition: Callable[[], object]) -> None:
        """Waits for the condition."""
        while not condition():
            time.sleep(0.2)

    def run(self, *command: str) -> str:
        """Runs one of SLURM's commands and returns its output."""
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        return done.stdout.strip()

    def submit(self, *command: str | Path) -> str:
        """Submits a script with options and arguments, and returns the number of the job."""
        output = f"--output={self.directory}/%j.log"
        submitted = subprocess.run(
            ["sbatch", "--parsable", output, *command],
            env=self._environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
        )
        assert submitted.returncode == 0, submitted.stderr
        return submitted.stdout.strip()

    def state(self, job: str) -> tuple[str, int]:
        """Returns the state of a job and its exit status."""
        shown = self.run("scontrol", "show", "job", job)
        return re.search(r"JobState=(\w+)", shown)[1], int(re.search(r"ExitCode=(\d+)", shown)[1])

    def wait_for_end(self, job: str) -> tuple[str, int]:
        """Returns the state of a job that has ended."""
        self.wait(lambda: self.state(job)[0] not in GOING_ON)
        return self.state(job)

    def lose(self, node: str) -> None:
        """Kills all processes of a node at once, as if its machine were lost."""
        found = processes(node)
        for pid in [self._daemons.pop(node).pid, *found]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self, job: str) -> str:
        path = self.directory / f"{job}.log"
        return path.read_text() if path.exists() else ""


def processes(node: str, of: str = "") -> list[int]:
    """Returns the processes of jobs on a node, including SLURM's own, whose command line contains `of`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().split(b"\0")
            is_there = f"SLURMD_NODENAME={node}".encode() in environment or f"-N {node}" in command
            if of in command and is_there:
                found.append(int(entry.name))
    return found
