"""Stubs for modules that SGLang imports but does not use on a CPU."""

import importlib.util
import sys
import types
from functools import cache


def install_cpu_stubs() -> None:
    """Installs the stubs if SGLang's kernels are missing. Call it before importing transformers or SGLang."""
    if importlib.util.find_spec("sgl_kernel") is None:
        sys.modules["sgl_kernel"] = _MissingKernels("sgl_kernel")
        _torchvision_operators()


class _MissingKernels(types.ModuleType):
    """A module in which every attribute is a function that raises NotImplementedError."""

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: object, **kwargs: object) -> None:
            raise NotImplementedError(f"sgl_kernel.{name}: no kernels are installed here")

        return missing


@cache  # a reference, because a garbage-collected library removes its operators
def _torchvision_operators() -> object:
    """Defines torchvision's operators. Its CUDA build registers fake kernels even if it cannot load them."""
    from torch import library

    operators = library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return operators
