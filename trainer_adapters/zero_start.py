"""Moves a model to the device of each rank before DeepSpeed gets it, one parameter at a time.

DeepSpeed's own start converts all of it in host memory, on every rank. In stage 3 it also moves all of it to
the device before it partitions the first parameter. Rank 0 provides the values: DeepSpeed broadcasts them.
"""

import deepspeed
import torch


def place(
    module: torch.nn.Module, device: torch.device, dtype: torch.dtype, settings: dict[str, object]
) -> None:
    """Converts each parameter to `dtype` on the device and, in stage 3, broadcasts and partitions it.

    In stage 3, the device then holds the rank's partitions and at most one full parameter. All ranks call it
    together, with DeepSpeed's configuration.
    """
    partitions = None
    if settings["zero_optimization"]["stage"] == 3:
        partitions = deepspeed.zero.Init(module=torch.nn.Module(), config_dict_or_path=settings)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(device, dtype)
        if partitions is not None:
            partitions._convert_to_zero_parameters([parameter])
    module.to(device)  # moves its buffers
