"""Stand-ins for what is missing where SGLang is installed without CUDA: a CPU needs their names alone."""

import importlib.util
import sys
import types
from functools import cache


def install_cpu_stubs() -> None:
    """Before transformers or SGLang is imported. Does nothing where SGLang's kernels are installed."""
    if importlib.util.find_spec("sgl_kernel") is None:
        sys.modules["sgl_kernel"] = _MissingKernels("sgl_kernel")
        _torchvision_operators()


class _MissingKernels(types.ModuleType):
    """Has every name; what is called raises. SGLang imports by name what a dense model never calls."""

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: object, **kwargs: object) -> None:
            raise NotImplementedError(f"sgl_kernel.{name}: no kernels are installed here")

        return missing


@cache  # a library that is dropped takes its operators back
def _torchvision_operators() -> object:
    """torchvision's build for CUDA registers fake kernels of operators that it could not load."""
    from torch import library

    operators = library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return operators
