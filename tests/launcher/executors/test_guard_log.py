"""The log that the guard writes, where a new file cannot be begun."""

import subprocess
import sys
from pathlib import Path

from pipelinerl.launcher.executors import guard

SCRIPT = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import guard
log = guard.Log(sys.argv[2], 100)
begin = os.open
def full(path, *rest):
    if os.path.exists(sys.argv[2] + ".full"):
        raise OSError(28, "full")
    return begin(path, *rest)
guard.os.open = full
for number in range(60):
    if number == 30:
        os.unlink(sys.argv[2] + ".full")
    os.write(log.job_end, b"line %d\\n" % number)
    log.copy()
"""


def test_a_log_that_cannot_begin_anew_goes_on_and_begins_anew_later(tmp_path: Path):
    path = tmp_path / "a.log"
    path.with_name("a.log.full").touch()
    with path.open("ab") as log:
        subprocess.run([sys.executable, "-c", SCRIPT, guard.__file__, str(path)], stdout=log, check=True)
    assert path.read_text().endswith("line 59\n")
    assert path.stat().st_size <= 110
    assert {each.name for each in tmp_path.iterdir()} == {"a.log", "a.log.1"}
