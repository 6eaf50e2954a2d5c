"""The loop that a newcomer reads, run as it stands."""

import os
import re
import subprocess
import sys

import pytest

from pipelinerl.paths import ROOT

LOOP = ROOT / "examples" / "minimal_loop.py"


def test_it_is_short():
    assert len(LOOP.read_text().splitlines()) <= 120


@pytest.mark.engines
def test_it_learns():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, LOOP], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = map(float, re.findall(r"held-out success \w+: (\d\.\d\d)", done.stdout))
    assert before < 0.4
    assert after > before + 0.3
