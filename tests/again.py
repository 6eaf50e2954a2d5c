"""Runs pytest, and the few tests that failed once more, alone: `make test RUNNER=tests.again`.

Other work on the processor may make a test exceed a limit of time. A race that is rare looks the same, so
each such test is named at the end, and is to be mended. More than three failures are not tried again.
"""

import json
import subprocess
import sys

import pytest

from pipelinerl.paths import ROOT

FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
AT_MOST = 3


def main(arguments: list[str], alone: list[str]) -> int:
    """Returns pytest's status: 0 if no test failed, or at most three did and each passes `alone`."""
    FAILED.unlink(missing_ok=True)
    status = pytest_status(arguments)
    names = list(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(names) <= AT_MOST:
        return status
    print(f"\n{len(names)} failed among others; once more, alone:", *names, sep="\n  ", flush=True)
    status = pytest_status([*arguments, *alone])
    if status == pytest.ExitCode.OK:
        print("\n".join(f"unsteady: {name} failed among others, and passed alone" for name in names))
    return status


def pytest_status(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ["-n", "0", "--last-failed", "--last-failed-no-failures=none"]))
