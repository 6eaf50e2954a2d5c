"""The processes of a run on this machine, as the operating system reports them."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

GUARDS = ("guard.py", "apart")  # the last part of a guard's command, here and on Ray


def processes_of(run_dir: Path) -> list[int]:
    """Returns the running processes with the run directory in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(run_dir).encode() in text and alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """Returns whether the process exists and has not ended."""
    return state_of(pid) not in ("", "Z")


def is_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped the process."""
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    """Returns the letter of a process's state, or "" if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def jobs_of(run_dir: Path) -> dict[str, int]:
    """Returns the process of each job by its name: the child of the guard that writes the job's log."""
    jobs = [(name, _job_below(guard)) for guard, name in _guards(run_dir)]
    return {name: job for name, job in jobs if job}


def guards_of(run_dir: Path) -> list[int]:
    """Returns the guards of the run's jobs, which refer to the run only by the log that they write."""
    return [guard.pid for guard, _ in _guards(run_dir)]


def redis_of(run_dir: Path) -> int | None:
    """Returns the process of the run's own Redis server."""
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"] == "redis-server" and process.cwd() == str(run_dir / "redis"):
                return process.pid if alive(process.pid) else None
        except psutil.Error:
            continue
    return None


def _guards(run_dir: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Yields each guard of the run, and the name of its job."""
    for process in psutil.process_iter(["cmdline"]):
        if not _is_guard(process.info["cmdline"]):
            continue
        with contextlib.suppress(OSError):
            log = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
            if log.parent == run_dir / "logs":
                yield process, log.stem


def _is_guard(command: Sequence[str] | None) -> bool:
    """Returns whether this is the command of a guard. It is None for a process that may not be inspected."""
    return bool(command) and command[1:3] == ["-I", "-S"] and command[-1].endswith(GUARDS)


def _job_below(guard: psutil.Process) -> int | None:
    """Returns the guard's running child, unless that is a guard too."""
    try:
        for child in guard.children():
            if alive(child.pid) and not _is_guard(child.cmdline()):
                return child.pid
    except psutil.Error:
        pass
    return None
