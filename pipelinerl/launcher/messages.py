"""What the launcher tells on the standard error, beside the console's view of the run."""

import sys


def say(line: str) -> None:
    print(f"launch.py: {line}", file=sys.stderr, flush=True)
