"""The process between the owner of a job and the job: nothing that the job started outlives it or its owner.

Started by an executor as `python -I -S guard.py`, in a session of its own; the standard library is all that
it has. Its standard input is a pipe that only the owner holds open, and brings one line of JSON: `command`,
`environment`, `grace_s`, `ends_if_stopped`, `log`, `log_bytes`. Its standard output is the job's log: it
writes there what the job prints, and begins the file anew when it is full. If the order has
`job` and `output`, that process is a child of the guard already, and that descriptor is where it prints to.

The pipe's end kills the job and every descendant at once. SIGTERM is passed on to them all, and what is left
after `grace_s` is killed. The guard ends as the job has ended: by the same status, or by the same signal.

`guard.py apart` is for an owner that kills its own children when it ends, before the pipe's end is heard.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 127  # a shell's exit status for a command that it cannot start
POLL_S = 0.05  # while killed processes have not ended
READ_BYTES = 65536  # the most output of the job to read at once
LEAST_BYTES = 4096
LONGEST_KILL_S = 10.0  # what cannot be killed within this time is left to the kernel


class Log:
    """The job's log: copies the job's output to a file, which is this process's standard output.

    When the file has `most_bytes`, it is renamed to `path`.1, which replaces an earlier one. The next line
    begins a new file. Output that cannot be written, as on a full disk, is dropped, so that the job never
    waits for it.
    """

    def __init__(self, path: str, most_bytes: int, pipe: int | None = None):
        """Reads from `pipe`, the descriptor of a pipe to which the job prints already, or makes one."""
        self._path = path
        self._most_bytes = most_bytes
        self._size = os.fstat(1).st_size
        self._between_lines = True
        self.pipe, self.job_end = os.pipe() if pipe is None else (pipe, None)
        os.set_blocking(self.pipe, False)
        self.is_open = True

    def pass_on(self) -> bool:
        """Copies the available output, at most READ_BYTES. Returns whether there was any."""
        try:
            data = os.read(self.pipe, min(READ_BYTES, max(LEAST_BYTES, self._most_bytes - self._size)))
        except BlockingIOError:
            return False
        self.is_open = bool(data)
        if self._size >= self._most_bytes:
            rest = 0 if self._between_lines else data.find(b"\n") + 1
            if rest < len(data):
                self._write(data[:rest])
                self._begin_anew()
                data = data[rest:]
        self._write(data)
        return self.is_open

    def _write(self, data: bytes) -> None:
        if data:
            self._between_lines = data.endswith(b"\n")
        while data:
            try:
                written = os.write(1, data)
            except OSError:
                return
            self._size += written
            data = data[written:]

    def _begin_anew(self) -> None:
        self._size = 0
        begun = self._path + ".new"
        try:
            file = os.open(begun, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError:
            return
        try:
            if os.path.exists(self._path):
                os.replace(self._path, self._path + ".1")
            os.replace(begun, self._path)
        except OSError:
            os.close(file)
            return
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)


class Guard:
    """The guard of one job. Without /proc, it can end only the job's own process group."""

    def __init__(self, order: dict[str, Any]):
        self._order = order
        self._log = Log(order["log"], order["log_bytes"], order.get("output"))
        self._wakeup, wakes = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._deadline: float | None = None  # when the remaining processes are killed
        self._status: int | None = None  # status of the job, in waitpid's format
        self._job = 0
        signal.signal(signal.SIGTERM, self._terminate)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked by whoever has forked the job

    def run(self) -> int:
        """Runs the job until no process of it is left. Returns its status, in `waitpid`'s format."""
        self._job = self._order.get("job") or self._started()
        while not self._is_over():
            heard = [sys.stdin.fileno(), self._wakeup] + [self._log.pipe] * self._log.is_open
            readable, _, _ = select.select(heard, [], [], self._wait_s())
            if self._log.pipe in readable:
                self._log.pass_on()
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
            if sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 4096):
                break
        self._kill_all()
        while self._log.pass_on():
            pass
        return self._status if self._status is not None else signal.SIGKILL

    def _started(self) -> int:
        """Starts the job, and returns its process."""
        guard = os.getpid()

        def end_with_guard() -> None:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guard:
                    os._exit(CANNOT_START)

        # Kept, because a discarded Popen object would reap the job and lose its status.
        self._process = subprocess.Popen(
            self._order["command"],
            env=self._order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=self._log.job_end,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_guard,
        )
        os.close(self._log.job_end)
        if self._deadline is not None:  # the signal came before the job
            self._pass_on()
        return self._process.pid

    def _terminate(self, *_: object) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._order["grace_s"]
            self._pass_on()

    def _pass_on(self) -> None:
        for pid in descendants():
            send(signal.SIGTERM, pid=pid)

    def _is_over(self) -> bool:
        """Returns whether the job has ended.

        If the job was asked to end, its descendants must have ended too, or its grace must be over.
        """
        self._reap()
        if self._deadline is None:
            return self._status is not None
        if time.monotonic() >= self._deadline:
            return True
        return self._status is not None and not descendants()

    def _wait_s(self) -> float | None:
        if self._deadline is None:
            return None
        return POLL_S if self._status is not None else max(0.0, self._deadline - time.monotonic())

    def _reap(self) -> None:
        """Handles every child that has ended or was stopped, including orphans of the job."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                if pid == self._job and self._order["ends_if_stopped"]:
                    send(signal.SIGKILL, group=self._job)
            elif pid == self._job:
                self._status = status

    def _kill_all(self) -> None:
        deadline = time.monotonic() + LONGEST_KILL_S
        if self._status is None or sys.platform != "linux":
            send(signal.SIGKILL, group=self._job)
        while time.monotonic() < deadline:
            left = descendants()
            for pid in left:
                send(signal.SIGKILL, pid=pid)
            self._reap()
            if not left and self._status is not None:
                return
            select.select([self._wakeup], [], [], POLL_S)


def become_subreaper() -> None:
    """Has the orphans among the descendants of this process become its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[int]:
    """Returns the living descendants of this process, orphans included, because it is a subreaper."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if entry.isdigit() and (parent := living_parent(entry)):
            children.setdefault(parent, []).append(int(entry))
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found += children.get(pid, [])
    return found


def living_parent(pid: str) -> int | None:
    """Returns the parent of a process, or None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent, *_ = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if state in "ZX" else int(parent)


def kill_descendants() -> None:
    """Kills all descendants of this process, and those that they start meanwhile."""
    deadline = time.monotonic() + LONGEST_KILL_S
    while (left := descendants()) and time.monotonic() < deadline:
        for pid in left:
            send(signal.SIGKILL, pid=pid)
        time.sleep(POLL_S)


def send(number: int, pid: int | None = None, group: int | None = None) -> None:
    """Sends a signal to a process or a process group, if it exists and belongs to this user."""
    try:
        if pid is not None:
            os.kill(pid, number)
        elif group:
            os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def stand_apart() -> None:
    """Continues in a child process. The parent forwards SIGTERM to it, and ends with its status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, lambda *_: send(signal.SIGTERM, pid=child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if child:
        end_as(os.waitpid(child, 0)[1])


def end_as(status: int) -> NoReturn:
    """Ends this process with the job's exit status, or by the signal that ended the job."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.set_wakeup_fd(-1)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        set_no_core_file()
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def set_no_core_file() -> None:
    """Keeps the guard from leaving a second core file beside the job's."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Reads the order, runs the job, and ends with its status."""
    if sys.argv[1:] == ["apart"]:
        stand_apart()
    if sys.platform == "linux":
        become_subreaper()
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:  # the owner is gone; it may have forked the job
            kill_descendants()
            return
        line += piece
    try:
        status = Guard(json.loads(line)).run()
    except OSError as error:
        print(f"cannot start: {error}", flush=True)
        os._exit(CANNOT_START)
    end_as(status)


if __name__ == "__main__":
    main()
