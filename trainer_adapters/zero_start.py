"""Converts a model and moves it to each rank's device, one parameter at a time, before DeepSpeed's start.

DeepSpeed's start would convert the whole model in every rank's host memory. In stage 3 it would also move the
whole model to the device before it partitions the first parameter. DeepSpeed broadcasts rank 0's values.
"""

import deepspeed
import torch


def place(
    module: torch.nn.Module, device: torch.device, dtype: torch.dtype, settings: dict[str, object]
) -> None:
    """Converts each parameter to `dtype` on the device and, in stage 3, broadcasts and partitions it.

    In stage 3, the device has at most one full parameter at a time. It is a collective. `settings`:
    DeepSpeed's configuration.
    """
    partitions = None
    if settings["zero_optimization"]["stage"] == 3:
        partitions = deepspeed.zero.Init(module=torch.nn.Module(), config_dict_or_path=settings)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(device, dtype)
        if partitions is not None:
            partitions._convert_to_zero_parameters([parameter])
    module.to(device)  # moves its buffers
