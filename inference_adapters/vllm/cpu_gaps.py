"""Closes two gaps of vLLM 0.32 without CUDA, for models with recurrent layers. `plugin` calls it."""

import sys
import types
from importlib.machinery import ModuleSpec

import torch
from transformers.utils import is_torchvision_available
from vllm import _custom_ops

TORCHVISION = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


def stand_in_for_torchvision() -> None:
    """Makes torchvision importable, whose wheels do not load without CUDA.

    vLLM imports it with Qwen3.5's pictures, which this server does not take.
    """
    if is_torchvision_available():  # transformers remembers the answer
        return
    for name in TORCHVISION:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)  # whoever asks whether there is one reads it
    sys.modules["torchvision.transforms.v2"].functional = sys.modules[TORCHVISION[-1]]


def convolve_one_token() -> None:
    """Pads a prompt of one token for vLLM's convolution, which would end the engine.

    The kernel refuses such a prompt as "not transposed".
    """
    convolve = _custom_ops.causal_conv1d_fwd_cpu

    def convolve_padded(*, x: torch.Tensor, **arguments: object) -> torch.Tensor:
        if x.size(-1) > 1:
            return convolve(x=x, **arguments)
        padded = torch.cat([x.mT, torch.zeros_like(x.mT)]).mT
        return convolve(x=padded, **arguments)[..., :1]

    _custom_ops.causal_conv1d_fwd_cpu = convolve_padded
