"""SGLang's own HTTP server, as a program that also starts where its CUDA parts are missing.

Run as a file: SGLang's worker processes are spawned and import it again, so that what it puts right holds
in them too. What it puts right is needed on a CPU alone, where SGLang is installed without its kernels.
"""

import importlib.util
import os
import sys
import types

API_KEY_VARIABLE = "PIPELINERL_SGLANG_KEY"  # not on a command line, which every user can read


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_itself_when_parent_died

    kill_itself_when_parent_died()
    # The adapter keeps the model's context; SGLang needs a little more of its own.
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    run_server(prepare_server_args([*sys.argv[1:], "--api-key", os.environ[API_KEY_VARIABLE]]))


class _NoKernels(types.ModuleType):
    """Has every name; what is called raises. SGLang imports by name what a dense model never calls."""

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: object, **kwargs: object) -> None:
            raise NotImplementedError(f"sgl_kernel.{name}: no kernels are installed here")

        return missing


def _torchvision_operators():
    """torchvision's build for CUDA registers fake kernels of operators that it could not load."""
    from torch import library

    operators = library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return operators


if importlib.util.find_spec("sgl_kernel") is None:
    sys.modules["sgl_kernel"] = _NoKernels("sgl_kernel")
    _declared = _torchvision_operators()  # a library that is dropped takes them back
if __name__ == "__main__":
    main()
