"""The processes of a run on this machine, as its operating system shows them."""

import os
from pathlib import Path

import psutil

GUARD = "guard.py"


def processes_of(run_dir: Path) -> list[int]:
    """Returns the live processes with the run directory in their command line or environment."""
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
    """Returns whether the process is there and has not ended."""
    return state_of(pid) not in ("", "Z")


def is_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped the process."""
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    """Returns the letter of a process's state, "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def jobs_of(run_dir: Path) -> dict[str, int]:
    """Returns the process of each job by its name: the child of the guard that writes the job's log."""
    found = {}
    for guard in psutil.process_iter(["cmdline"]):
        name = _logged_by(guard, run_dir / "logs")
        job = _job_below(guard) if name else None
        if job:
            found[name] = job
    return found


def redis_of(run_dir: Path) -> int | None:
    """Returns the process of the run's own Redis server."""
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"] == "redis-server" and process.cwd() == str(run_dir / "redis"):
                return process.pid if alive(process.pid) else None
        except psutil.Error:
            continue
    return None


def _logged_by(guard: psutil.Process, logs: Path) -> str | None:
    command = guard.info["cmdline"] or []
    if not any(word.endswith(GUARD) for word in command):
        return None
    try:
        log = Path(os.readlink(f"/proc/{guard.pid}/fd/1"))
    except OSError:
        return None
    return log.stem if log.parent == logs else None


def _job_below(guard: psutil.Process) -> int | None:
    """Returns the guard's living child, unless that is a guard too."""
    try:
        for child in guard.children():
            if alive(child.pid) and not any(word.endswith(GUARD) for word in child.cmdline()):
                return child.pid
    except psutil.Error:
        pass
    return None
