"""What a terminal lacks is shown by other characters."""

import subprocess
import sys

import pytest

PRINTS = r"""
import sys
from contracts.support.terminal import print_any_text, printable
line = "0.24 \u2192 0.95 \u2013 \u00e9 \u2265"
print_any_text()
print(line)
print(printable(line), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "0.24 -> 0.95 - ? >="), ("latin-1", "0.24 -> 0.95 - é >="), ("utf-8", "0.24 → 0.95 – é ≥")],
)
def test_any_text_is_printed(encoding, shown):
    environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    ended = subprocess.run([sys.executable, "-c", PRINTS], env=environment, capture_output=True, check=True)
    assert ended.stdout.decode(encoding) == ended.stderr.decode(encoding) == f"{shown}\n"
