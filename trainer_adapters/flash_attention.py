"""Activates FlashAttention-3 for torch's variable-length attention, if it is installed.

FlashAttention-3 (arXiv 2407.08608) is for Hopper GPUs, such as H100 and H200. torch includes version 2, and
loads version 3 from the package `flash_attn_interface`, for the whole process.
"""

import logging
from importlib.util import find_spec

import torch
import torch.nn.attention
from torch.torch_version import TorchVersion

HOPPER = (9, 0)  # CUDA's compute capability
FIRST_TORCH = TorchVersion("2.12")  # torch 2.11 does not pass the maximum sequence length to the kernel

log = logging.getLogger(__name__)


def prefer_flash_attention_3(device: torch.device) -> None:
    """Activates FlashAttention-3 in this process if it can run on `device`, and logs the result."""
    if not has_flash_attention_3(device):
        return
    try:
        torch.nn.attention.activate_flash_attention_impl("FA3")
    except (ImportError, OSError, RuntimeError) as error:
        log.warning("FlashAttention-3 is installed, and torch cannot use it; 2 is used instead: %s", error)
    else:
        log.info("attention runs by FlashAttention-3")


def has_flash_attention_3(device: torch.device) -> bool:
    """Returns True if FlashAttention-3 is installed, and supports this device and torch version."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) == HOPPER
        and torch.__version__ >= FIRST_TORCH
        and find_spec("flash_attn_interface") is not None
    )
