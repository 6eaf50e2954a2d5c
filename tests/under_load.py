"""Runs a command beside six processes that keep the processor busy: `make soak-under-load`."""

import subprocess
import sys

BUSY = 6
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def main(command: list[str]) -> int:
    """Returns the exit status of the command."""
    busy = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(BUSY)]
    try:
        return subprocess.run(command).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
