"""A view of a rank's shards as one float32 vector, for the outer optimizer."""

from collections.abc import Iterator, Sequence

import torch


class Flat:
    """A view of contiguous float32 tensors, on any device, as one vector of CPU elements."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        """Raises ValueError for a tensor that is not contiguous float32."""
        for tensor in tensors:
            if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
                raise ValueError(f"a shard must be contiguous float32, not {tensor.dtype} {tensor.stride()}")
        self._tensors = [tensor.detach().view(-1) for tensor in tensors]
        self.sizes = [tensor.numel() for tensor in tensors]
        self.elements = sum(self.sizes)

    def _slices(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """Yields the parts of the tensors with the elements `begin` to `end`."""
        for tensor in self._tensors:
            if begin < len(tensor) and end > 0:
                yield tensor[max(begin, 0) : end]
            begin -= len(tensor)
            end -= len(tensor)

    def read(self, begin: int, end: int) -> torch.Tensor:
        """Returns the elements in new CPU memory."""
        return torch.cat([torch.empty(0), *(part.to("cpu") for part in self._slices(begin, end))])

    def write(self, begin: int, values: torch.Tensor) -> None:
        """Replaces the elements from `begin` on."""
        for part in self._slices(begin, begin + len(values)):
            part.copy_(values[: len(part)])
            values = values[len(part) :]
