"""SGLang's own HTTP server, as a program that also starts where its CUDA parts are missing.

It is run as a file, because SGLang's worker processes are spawned and import it again.
"""

import os
import sys

from contracts.support.die_with_parent import die_with_parent
from inference_adapters.sglang import API_KEY_VARIABLE, PARENT_VARIABLE
from inference_adapters.sglang.cpu_stubs import install_cpu_stubs


def main() -> None:
    die_with_parent()  # SGLang does so itself, but only once it is loaded
    if os.getppid() != int(os.environ.get(PARENT_VARIABLE, os.getppid())):
        sys.exit("the server that SGLang was started by has ended")
    install_cpu_stubs()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    # The adapter enforces the model's context; SGLang needs a slightly longer one for itself.
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    run_server(prepare_server_args([*sys.argv[1:], "--api-key", os.environ[API_KEY_VARIABLE]]))


if __name__ == "__main__":
    main()
else:  # one of SGLang's workers
    die_with_parent()
    install_cpu_stubs()
