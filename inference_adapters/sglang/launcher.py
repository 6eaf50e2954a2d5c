"""The program of SGLang's process: SGLang's HTTP server, with stubs on machines without CUDA.

It is started by its file path, because SGLang's spawned worker processes import it again.
"""

import os
import sys

from contracts.support.die_with_parent import die_with_parent
from inference_adapters.sglang import API_KEY_VARIABLE, PARENT_VARIABLE
from inference_adapters.sglang.cpu_stubs import install_cpu_stubs


def main() -> None:
    die_with_parent()  # SGLang does this too, but only after loading
    if os.getppid() != int(os.environ.get(PARENT_VARIABLE, os.getppid())):
        sys.exit("the server that SGLang was started by has ended")
    install_cpu_stubs()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    # The adapter enforces the model's context; SGLang needs a slightly longer one.
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    run_server(prepare_server_args([*sys.argv[1:], "--api-key", os.environ[API_KEY_VARIABLE]]))


if __name__ == "__main__":
    main()
else:  # one of SGLang's workers
    die_with_parent()
    install_cpu_stubs()
    from inference_adapters.sglang import prompt_scores

    prompt_scores.register()
