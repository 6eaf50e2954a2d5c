"""The keeper of one job on its node, which reserves the job's port, starts the job's guard, and ends it.

`cluster.py` sends the class to the node by value, as a Ray actor. Nodes need not have this package, because
the class uses only the standard library. The guard kills the job when the keeper ends.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

RAYLET_POLL_S = 0.25
GUARD_END_S = 15.0  # longest wait for a guard to end; a guard waits at most 10 s for killed processes
START_S = 10.0  # longest wait of a call of `end` for the call of `run`, which may arrive later
REACH_S = 10.0  # time for the launcher to accept a connection
# A lost launcher's machine is noticed after 15 + 4 x 5 seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
OWNER_ALONE = 0o700
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"  # torch's
NCCL_VARIABLE = "NCCL_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915  # <linux/sockios.h>


class Keeper:
    """guard: the source of guard.py. withheld: pattern of variables that jobs do not inherit.

    Processes are numbered from 1, because calls may arrive in another order.
    """

    def __init__(self, guard: str, withheld: str):
        self._source = memory_file(guard)
        self._withheld = re.compile(withheld)
        self._gpus = ""
        self._interface: str | None = None
        self._port: socket.socket | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._number = 0  # number of the process that was started last
        self._finished = False
        self._changed = threading.Condition()
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

    def place(
        self, port: int | None, host: str | None, gpus: int, address: str, launcher: tuple[str, int]
    ) -> dict[str, Any]:
        """Reserves the port, and returns fields of the Placement. launcher: host and port of the lifeline."""
        end_with_launcher(launcher)
        if port is not None:
            self._port = reserved(host or address, port)
            port = self._port.getsockname()[1]
        self._gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "") if gpus else ""
        self._interface = os.environ.get(INTERFACE_VARIABLE) or interface_of(address)
        found = {"port": port, "gpus": self._gpus, "interface": self._interface}
        return {"host": socket.gethostname(), **found}

    def keep(self) -> None:
        """Never returns, so that the call fails when this process or its node is lost."""
        threading.Event().wait()

    def run(self, number: int, process: dict[str, Any]) -> int:
        """Runs a process. Returns its exit status, or minus the number of the signal that ended it."""
        with self._changed:
            if self._finished:
                return -signal.SIGKILL
            self._close_pipe()
            guard = self._guard = self._start(process)
            self._number = number
            self._changed.notify_all()
        return guard.wait()

    def _start(self, process: dict[str, Any]) -> subprocess.Popen[bytes]:
        log = Path(process["log"])
        if not log.parent.parent.is_dir():
            raise FileNotFoundError(
                f"there is no {log.parent.parent} on this node; the run directory must be on a file system "
                "that all nodes share"
            )
        log.parent.mkdir(mode=OWNER_ALONE, exist_ok=True)
        node = {}
        if not process["has_whole_environment"]:
            node = with_interface_of_nccl(self._environment() | process["forwarded"], self._interface)
        order = {"environment": node | process["environment"]}
        passed = ("command", "grace_s", "ends_if_stopped", "log", "log_bytes")
        order |= {name: process[name] for name in passed}
        with log.open("ab") as file:
            # `apart`, because Ray kills an actor's children if the actor ends with its driver.
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", f"/dev/fd/{self._source}", "apart"],
                env={},
                cwd=process["directory"] if os.path.isdir(process["directory"]) else None,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[self._source],
            )
        guard.stdin.write(json.dumps(order).encode() + b"\n")
        guard.stdin.flush()
        return guard

    def _environment(self) -> dict[str, str]:
        """Returns the variables that `ray start` had on this node, and the job's GPUs."""
        node = environment_of(os.getppid())
        node = {name: value for name, value in node.items() if not self._withheld.fullmatch(name)}
        return node | {"CUDA_VISIBLE_DEVICES": self._gpus}

    def end(self, number: int) -> None:
        """Sends SIGTERM to the process of this number."""
        with self._changed:
            self._changed.wait_for(lambda: self._number >= number or self._finished, START_S)
            if self._number == number:
                self._guard.send_signal(signal.SIGTERM)

    def finish(self) -> None:
        """Kills the remaining processes, and waits until they have ended."""
        with self._changed:
            self._finished = True
            self._close_pipe()
            self._changed.notify_all()
        if self._guard:
            self._guard.wait(GUARD_END_S)

    def _close_pipe(self) -> None:
        if self._guard:
            self._guard.stdin.close()


def memory_file(text: str) -> int:
    """Returns the descriptor of an in-memory file, from which a program runs as /dev/fd/NUMBER."""
    number = os.memfd_create("guard")
    os.write(number, text.encode())
    return number


def end_with(parent: int) -> None:
    """Ends this process when the parent process has ended."""
    while os.getppid() == parent:
        time.sleep(RAYLET_POLL_S)
    os._exit(1)


def end_with_launcher(launcher: tuple[str, int]) -> None:
    """Connects to the launcher, and ends this process when the connection ends. Raises OSError."""
    try:
        connection = socket.create_connection(launcher, REACH_S)
    except OSError as error:
        host, port = launcher
        raise OSError(f"this node does not reach the launcher at {host}:{port}: {error}") from error
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if number := getattr(socket, option, None):
            connection.setsockopt(socket.IPPROTO_TCP, number, value)

    def wait() -> None:
        try:
            connection.recv(1)
        finally:
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def reserved(address: str, port: int) -> socket.socket:
    """Returns a socket that reserves a port, 0 for any free one, but lets another process listen at it."""
    kept = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        kept.bind((address, port))
    except OSError as error:
        kept.close()
        raise OSError(error.errno, f"nothing can listen at {address}:{port}: {error.strerror}") from error
    return kept


def environment_of(pid: int) -> dict[str, str]:
    """Returns the initial environment of a process, without variables that Ray withholds from its actors."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = [os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry]
    return {name: value for name, value in pairs if name in os.environ}


def with_interface_of_nccl(environment: dict[str, str], interface: str | None) -> dict[str, str]:
    """Returns the variables with gloo's interface for NCCL too, unless they name another."""
    given = {NCCL_VARIABLE: f"={interface}"} if interface else {}  # without `=`, eth1 means eth10 too
    return given | environment


def interface_of(address: str) -> str | None:
    """Returns the network interface of an IPv4 address; None for other addresses and the loopback."""
    import fcntl

    if ":" in address or address.startswith("127."):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking, SIOCGIFADDR, name.encode().ljust(40, b"\0"))
            except OSError:  # the interface has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
