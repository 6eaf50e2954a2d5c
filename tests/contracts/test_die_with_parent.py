"""What asks Linux to end a child with its parent does nothing on another system."""

import subprocess
import sys

import pytest

ASKED = """
import ctypes, signal, sys
from contracts.support.die_with_parent import die_with_parent
sys.platform = sys.argv[1]
die_with_parent(signal.SIGTERM)
number = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
print(number.value)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which signal it will send")
@pytest.mark.parametrize(("system", "number"), [("linux", "15"), ("darwin", "0")])
def test_only_linux_is_asked_to_end_a_child_with_its_parent(system, number):
    told = subprocess.run(
        [sys.executable, "-c", ASKED, system], capture_output=True, text=True, check=True
    ).stdout
    assert told.strip() == number
