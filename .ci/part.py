"""Runs a command as a part of continuous integration, and adds its minutes and CPU seconds to a file.

    python3 .ci/part.py FILE NAME COMMAND...

It ends with the command's status. CPU seconds include processes that the command leaves behind.
"""

import ctypes
import os
import resource
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
LONGEST_WAIT_S = 20.0


def main(file: str, name: str, command: list[str]) -> int:
    """Returns the exit status of the command."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans are waited for here, and so counted
    began = time.monotonic()
    status = status_of(subprocess.Popen(command))
    wait_for_orphans()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (time.monotonic() - began) / 60
    with open(file, "a") as parts:
        parts.write(f"{name}: {minutes:.1f} minutes, {used.ru_utime + used.ru_stime:.0f} CPU seconds\n")
    return status


def status_of(process: subprocess.Popen) -> int:
    """Waits for the process, and meanwhile for orphans: tests look for processes that are gone."""
    while True:
        ended, status = os.wait()
        if ended == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode


def wait_for_orphans() -> None:
    """Waits for what the command left behind, such as fork servers, which end by themselves; not for ever."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
