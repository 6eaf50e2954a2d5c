"""Packs buckets of weights for a broadcast, into buffers that are reused."""

from collections.abc import Sequence

import torch


class BucketPacker:
    """Packs buckets into two buffers in turn, so that one can be on the wire while the other is filled.

    The buffers are kept for the next update: allocating memory costs more than the copy into it.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)
        self._used = torch.empty(0, dtype=torch.uint8)

    def pack(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns the raw bytes of the tensors in `dtype`, without padding, as one `[bytes]` uint8 tensor.

        The result stays valid until the call after the next one. A single tensor that needs no conversion is
        not copied: the result then shares its memory.
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
