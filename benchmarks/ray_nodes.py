"""A Ray cluster on this machine: a head and nodes that `ray start` starts, and that are killed by pid.

It does not use `ray.cluster_utils.Cluster`, whose nodes are children of this process and remain as zombies.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.run_processes import processes_of
from contracts.support.ports import ReservedPort

LEAST_STORE = 78643200  # bytes of the object store, which is not used
RAY = str(Path(sys.executable).with_name("ray"))
START_S = 120  # time for one node to start on a busy machine
END_S = 10.0  # time for all killed processes to end
POLL_S = 0.05
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class RayNodes:
    """A head with the given cores, and any number of started nodes."""

    def __init__(self, head_cpus: float = 0, with_token: bool = True, **environment: str):
        self.directory = Path(tempfile.mkdtemp(prefix="ray-"))  # short, because it contains sockets
        self._token = self.directory / "token"
        self._token.touch(mode=0o600)
        self._token.write_text(secrets.token_hex(16))
        self._port = ReservedPort()
        self._with_token = with_token
        self._of_the_head = {"cpus": head_cpus, **environment}
        self.address = ""  # HOST:PORT of the head
        self.head = 0  # pid of its raylet

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a driver needs in addition to its own environment."""
        return {**self._access(), "RAY_ADDRESS": self.address}

    def _access(self) -> dict[str, str]:
        mode = "token" if self._with_token else "disabled"
        return {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(self._token)}

    def start(
        self, cpus: float = 2, gpus: int = 0, arguments: tuple[str, ...] = (), **environment: str
    ) -> int:
        """Starts a node and returns the pid of its raylet. It tries twice: a busy machine may fail."""
        before = set(self.raylets())
        command = [RAY, "start", f"--num-cpus={cpus}"]
        command += [f"--num-gpus={gpus}", f"--object-store-memory={LEAST_STORE}", "--disable-usage-stats"]
        command += arguments or (f"--address={self.address}",)
        given = os.environ | SETTINGS | self._access() | environment
        for last in (False, True):
            # `ray start` must not get this process's pipes, because its processes would keep them open.
            with (self.directory / "start.log").open("a") as log:
                done = subprocess.run(command, env=given, stdout=log, stderr=log, timeout=START_S)
            if done.returncode == 0:
                return (set(self.raylets()) - before).pop()
            assert not last, (self.directory / "start.log").read_text()
        raise AssertionError

    def drain(self, raylet: int, seconds: int) -> None:
        """Announces the end of a node, as a cloud provider does for a spot machine."""
        words = Path(f"/proc/{raylet}/cmdline").read_text().split("\0")
        (node_id,) = [word.split("=")[1] for word in words if word.startswith("--node_id=")]
        command = [RAY, "drain-node", f"--address={self.address}", f"--node-id={node_id}"]
        command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
        command += [f"--deadline-remaining-seconds={seconds}"]
        subprocess.run(command, check=True, env=os.environ | self._access(), capture_output=True)

    @property
    def logs(self) -> Path:
        """The directory of all nodes' logs."""
        return self.directory / "r" / "session_latest" / "logs"

    def keepers(self) -> list[int]:
        """Returns the processes that keep a run's jobs alive on the nodes."""
        return [pid for pid in processes_of(self.directory) if "RayKeeper" in _command(pid)]

    def raylets(self) -> list[int]:
        return [pid for pid in processes_of(self.directory) if _program(pid) == "raylet"]

    def gcs(self) -> int:
        return next(pid for pid in processes_of(self.directory) if _program(pid) == "gcs_server")

    def __enter__(self) -> "RayNodes":
        temporary = self.directory / "r"
        arguments = (
            "--head",
            f"--port={self._port.number}",
            f"--temp-dir={temporary}",
            "--include-dashboard=false",
        )
        try:
            self.head = self.start(**self._of_the_head, arguments=arguments)
            self.address = (temporary / "ray_current_cluster").read_text()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        deadline = time.monotonic() + END_S
        while left := processes_of(self.directory):
            assert time.monotonic() < deadline, f"{left} do not end"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        shutil.rmtree(self.directory)
        self._port.release()


def raylet_of(pid: int) -> int:
    """Returns the raylet of the node on which Ray has started this process."""
    return next(parent.pid for parent in psutil.Process(pid).parents() if parent.name() == "raylet")


def _program(pid: int) -> str:
    return Path(_command(pid).split("\0")[0]).name


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
