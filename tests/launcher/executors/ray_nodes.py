"""A Ray cluster on this machine: a head and nodes that `ray start` starts, and that are killed by pid.

Never `ray.cluster_utils.Cluster`: its nodes are children of the test, and stay as zombies when killed.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.pipeline.runs import processes_of, wait_for
from tests.ports import free_port

LEAST_STORE = 78643200  # bytes of the object store, which nothing is put into
RAY = str(Path(sys.executable).with_name("ray"))
START_S = 120  # of one node, on a busy machine
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class RayNodes:
    """A head, with as many cores as it is given, and as many nodes as are started."""

    def __init__(self, head_cpus: float = 0, with_token: bool = True, **environment: str):
        self.directory = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets are in it
        self._token = self.directory / "token"
        self._token.touch(mode=0o600)
        self._token.write_text(secrets.token_hex(16))
        self._port = free_port()
        self._with_token = with_token
        self._of_the_head = {"cpus": head_cpus, **environment}
        self.address = ""  # HOST:PORT of the head
        self.head = 0  # pid of its raylet

    @property
    def environment(self) -> dict[str, str]:
        """What a driver needs beside its own environment."""
        return {**self._access(), "RAY_ADDRESS": self.address}

    def _access(self) -> dict[str, str]:
        mode = "token" if self._with_token else "disabled"
        return {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(self._token)}

    def start(
        self, cpus: float = 2, gpus: int = 0, arguments: tuple[str, ...] = (), **environment: str
    ) -> int:
        """Starts a node; returns the pid of its raylet. It may fail on a busy machine: it is tried twice."""
        before = set(self.raylets())
        command = [RAY, "start", f"--num-cpus={cpus}"]
        command += [f"--num-gpus={gpus}", f"--object-store-memory={LEAST_STORE}", "--disable-usage-stats"]
        command += arguments or (f"--address={self.address}",)
        given = os.environ | SETTINGS | self._access() | environment
        for last in (False, True):
            # `ray start` must not keep the test's own pipes open: its processes inherit them.
            with (self.directory / "start.log").open("a") as log:
                done = subprocess.run(command, env=given, stdout=log, stderr=log, timeout=START_S)
            if done.returncode == 0:
                return (set(self.raylets()) - before).pop()
            assert not last, (self.directory / "start.log").read_text()
        raise AssertionError

    def drain(self, raylet: int, seconds: int) -> None:
        """Announces the end of a node, as a cloud does for a spot machine."""
        words = Path(f"/proc/{raylet}/cmdline").read_text().split("\0")
        (node_id,) = [word.split("=")[1] for word in words if word.startswith("--node_id=")]
        command = [RAY, "drain-node", f"--address={self.address}", f"--node-id={node_id}"]
        command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
        command += [f"--deadline-remaining-seconds={seconds}"]
        subprocess.run(command, check=True, env=os.environ | self._access(), capture_output=True)

    def raylets(self) -> list[int]:
        return [pid for pid in processes_of(self.directory) if _program(pid) == "raylet"]

    def gcs(self) -> int:
        return next(pid for pid in processes_of(self.directory) if _program(pid) == "gcs_server")

    def __enter__(self) -> "RayNodes":
        temporary = self.directory / "r"
        arguments = ("--head", f"--port={self._port}", f"--temp-dir={temporary}", "--include-dashboard=false")
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
        for pid in processes_of(self.directory):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        wait_for(lambda: not processes_of(self.directory), 10)
        shutil.rmtree(self.directory)


def _program(pid: int) -> str:
    try:
        return Path(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]).name
    except OSError:
        return ""
