"""A view of several float32 tensors as one vector."""

from collections.abc import Iterator, Sequence

import torch


class Flat:
    """A view of tensors on any device, concatenated. Raises ValueError unless all are contiguous float32."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        for tensor in tensors:
            if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
                raise ValueError(f"a shard must be contiguous float32, not {tensor.dtype} {tensor.stride()}")
        self._tensors = [tensor.detach().view(-1) for tensor in tensors]
        self.sizes = [tensor.numel() for tensor in tensors]
        self.elements = sum(self.sizes)

    def _slices(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """Yields the slices of the tensors that make up the elements [begin, end)."""
        for tensor in self._tensors:
            if begin < len(tensor) and end > 0:
                yield tensor[max(begin, 0) : end]
            begin -= len(tensor)
            end -= len(tensor)

    def read(self, begin: int, end: int) -> torch.Tensor:
        """Returns the elements [begin, end) as a new CPU tensor."""
        return torch.cat([torch.empty(0), *(part.to("cpu") for part in self._slices(begin, end))])

    def write(self, begin: int, values: torch.Tensor) -> None:
        """Replaces the elements from `begin` on."""
        for part in self._slices(begin, begin + len(values)):
            part.copy_(values[: len(part)])
            values = values[len(part) :]
