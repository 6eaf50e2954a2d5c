"""The version of NCCL that a process tells: that of the library that it has loaded."""

import subprocess
import sys

import pytest
import torch

CODE = """
import ctypes, sys
from contracts.weights import loaded_nccl_version
assert loaded_nccl_version() is None
ctypes.CDLL(sys.argv[1])
print(loaded_nccl_version())
"""


@pytest.mark.engines  # which need a C compiler, as this test does
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has loaded an NCCL of its own")
def test_it_is_that_of_the_loaded_library(tmp_path):
    source = tmp_path / "nccl.c"
    source.write_text("int ncclGetVersion(int *version) { *version = 23007; return 0; }\n")
    library = tmp_path / "of_a_wheel.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", library, source], check=True)
    shown = subprocess.run([sys.executable, "-c", CODE, library], capture_output=True, text=True)
    assert shown.stdout == "2.30.7\n", shown.stderr
