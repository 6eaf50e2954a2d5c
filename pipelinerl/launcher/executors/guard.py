"""The guard of a job: a process that kills everything that the job started when the job or its owner ends.

An executor starts it as `python -I -S guard.py`, in its own session; it uses only the standard library. Its
standard input is a pipe that only the owner has open. The owner sends one line of JSON: `command`,
`environment`, `grace_s`, `ends_if_stopped`, `log`, `log_bytes`. Its standard output is the job's log file. If
the order has `job` and `output`, the job is already a child of the guard, and prints to that descriptor.

When the pipe ends, the guard kills the job and all descendants. It passes SIGTERM on to all of them, and
kills the remaining ones after `grace_s`. It ends with the job's exit status, or by the same signal.

`guard.py apart` is for an owner that kills its children when it ends, before the guard notices.
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
READ_BYTES = 65536  # largest read of the job's output
LEAST_BYTES = 4096
LONGEST_KILL_S = 10.0  # longest wait for killed processes


class Log:
    """Copies the job's output to the log file, which is this process's standard output.

    A file of `most_bytes` is renamed to `path`.1, and the next line begins a new file. Output that cannot be
    written, as on a full disk, is dropped, so that the job never waits for it.
    """

    def __init__(self, path: str, most_bytes: int, pipe: int | None = None):
        """pipe: descriptor of a pipe to which the job already prints; None makes one."""
        self._path = path
        self._most_bytes = most_bytes
        self._size = os.fstat(1).st_size
        self._between_lines = True
        self.pipe, self.job_end = os.pipe() if pipe is None else (pipe, None)
        os.set_blocking(self.pipe, False)
        self.is_open = True

    def copy(self) -> bool:
        """Copies the available output, at most READ_BYTES. Returns False if there was none."""
        try:
            data = os.read(self.pipe, min(READ_BYTES, max(LEAST_BYTES, self._most_bytes - self._size)))
        except BlockingIOError:
            return False
        self.is_open = bool(data)
        if self._size >= self._most_bytes:
            rest = 0 if self._between_lines else data.find(b"\n") + 1
            if rest < len(data):
                self._write(data[:rest])
                self._begin_new_file()
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

    def _begin_new_file(self) -> None:
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # a fork of the job blocks it

    def run(self) -> int:
        """Runs the job until no process of it is left. Returns its status, in `waitpid`'s format."""
        self._job = self._order.get("job") or self._start()
        while not self._is_over():
            watched = [sys.stdin.fileno(), self._wakeup] + [self._log.pipe] * self._log.is_open
            readable, _, _ = select.select(watched, [], [], self._wait_s())
            if self._log.pipe in readable:
                self._log.copy()
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
            if sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 4096):
                break
        self._kill_all()
        while self._log.copy():
            pass
        return self._status if self._status is not None else signal.SIGKILL

    def _start(self) -> int:
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
            self._forward_sigterm()
        return self._process.pid

    def _terminate(self, *_: object) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._order["grace_s"]
            self._forward_sigterm()

    def _forward_sigterm(self) -> None:
        for pid in descendants():
            send(signal.SIGTERM, pid=pid)

    def _is_over(self) -> bool:
        """Returns True if the job has ended.

        After SIGTERM, its descendants must have ended too, or `grace_s` must be over.
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
    """Makes this process the parent of the orphans among its descendants."""
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
    """Kills all descendants of this process, until none is left or LONGEST_KILL_S is over."""
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
        import resource

        number = os.WTERMSIG(status)
        signal.set_wakeup_fd(-1)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the job has written a core file already
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    """Reads the order, runs the job, and ends with its status."""
    if sys.argv[1:] == ["apart"]:
        stand_apart()
    if sys.platform == "linux":
        become_subreaper()
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:  # the owner has ended, and may have forked the job
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
