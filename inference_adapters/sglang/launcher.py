"""SGLang's own HTTP server, as a program that also starts where its CUDA parts are missing.

Run as a file: SGLang's worker processes are spawned and import it again, so that what holds here holds there.
"""

import ctypes
import os
import signal
import sys

from inference_adapters.sglang import API_KEY_VARIABLE, PARENT_VARIABLE
from inference_adapters.sglang.kernels import stand_in_for_missing_kernels

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    _end_with_parent()
    if os.getppid() != int(os.environ.get(PARENT_VARIABLE, os.getppid())):
        sys.exit("the server that SGLang was started by has ended")
    stand_in_for_missing_kernels()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    # The adapter keeps the model's context; SGLang needs a little more of its own.
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    run_server(prepare_server_args([*sys.argv[1:], "--api-key", os.environ[API_KEY_VARIABLE]]))


def _end_with_parent() -> None:
    """From now on, and not only once SGLang is loaded."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
else:  # one of SGLang's workers
    _end_with_parent()
    stand_in_for_missing_kernels()
