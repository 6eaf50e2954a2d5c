"""Packs buckets of weights into reusable buffers, for `contracts.weights.send_weights`."""

from collections.abc import Sequence

import torch


class BucketPacker:
    """Double-buffered packer: one buffer can be sent while the other is filled.

    Buffers are kept for the next update, because allocating them costs more than the copy into them.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)
        self._used = torch.empty(0, dtype=torch.uint8)

    def pack(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Casts the tensors to `dtype` and returns their bytes, without padding, as a `[bytes]` uint8 tensor.

        The result is valid until the call after the next one. It shares memory with its input if that is a
        single tensor that needs no conversion.
        """
        if len(tensors) == 1:
            raw = tensors[0].detach().to(device, dtype).contiguous()
            return raw.reshape(-1).view(torch.uint8)
        size = sum(tensor.numel() for tensor in tensors) * dtype.itemsize
        if self._free.numel() < size or self._free.device != device:
            self._free = torch.empty(size, dtype=torch.uint8, device=device)
        packed = self._free[:size]
        self._free, self._used = self._used, self._free
        start = 0
        for tensor in tensors:
            end = start + tensor.numel() * dtype.itemsize
            packed[start:end].view(dtype).view(tensor.shape).copy_(tensor.detach())
            start = end
        return packed
