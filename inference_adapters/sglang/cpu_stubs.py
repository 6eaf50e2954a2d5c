"""Stubs for modules that SGLang lacks without CUDA. On a CPU only their names are needed."""

import importlib.util
import sys
import types
from functools import cache


def install_cpu_stubs() -> None:
    """Installs the stubs if SGLang's kernels are missing.

    It must be called before transformers or SGLang is imported.
    """
    if importlib.util.find_spec("sgl_kernel") is None:
        sys.modules["sgl_kernel"] = _MissingKernels("sgl_kernel")
        _torchvision_operators()


class _MissingKernels(types.ModuleType):
    """A module that has every name; calling one raises NotImplementedError.

    SGLang imports names that a dense model never calls.
    """

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: object, **kwargs: object) -> None:
            raise NotImplementedError(f"sgl_kernel.{name}: no kernels are installed here")

        return missing


@cache  # kept, because a library that is garbage-collected removes its operators
def _torchvision_operators() -> object:
    """Defines torchvision's operators.

    Its CUDA build registers fake kernels for them even if it could not load them.
    """
    from torch import library

    operators = library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return operators
