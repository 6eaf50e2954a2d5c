"""What the launcher prints goes nowhere once nobody reads it, and the run goes on."""

import os
import pty
import subprocess
import sys

import pytest

from pipelinerl.paths import ROOT
from tests.limits import HANG_S

SCRIPT = """
import sys
from pipelinerl.launcher.terminal import outlast_readers
outlast_readers()
sys.stdin.readline()
for _ in range(3):
    print("x" * 100_000, flush=True)
    print("y", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty])
def test_a_reader_that_goes_away_ends_nothing(opened):
    reads, writes = opened()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=writes,
        stderr=writes,
        start_new_session=True,
    )
    os.close(writes)
    os.close(reads)
    process.stdin.write(b"go\n")
    process.stdin.close()
    assert process.wait(HANG_S) == 7
