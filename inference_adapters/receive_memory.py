"""Memory that weights are received into and served from, without a copy in between.

An engine that serves the received tensors themselves has two sets of buffers, and changes between them. New
memory for each update would cost more than to receive it.
"""

from collections.abc import Callable

import torch


class ReceiveMemory:
    """The buffers of the weights that are served, and of those that they replaced."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []
        self._served: list[torch.Tensor] = []
        self._received: list[torch.Tensor] = []

    def begin(self) -> Callable[[int], torch.Tensor]:
        """Begins an update. Returns what gives its buckets so many bytes each.

        If the update fails, its memory is not used again: an abandoned thread may still receive into it.
        """
        spare = self._spare
        self._spare = []
        received = self._received = []

        def allocate(size: int) -> torch.Tensor:
            fitting = next((i for i, buffer in enumerate(spare) if buffer.numel() == size), None)
            buffer = torch.empty(size, dtype=torch.uint8) if fitting is None else spare.pop(fitting)
            received.append(buffer)
            return buffer

        return allocate

    def serve(self) -> None:
        """Records that the update's weights are served, which frees the memory of those before."""
        self._spare = self._served
        self._served = self._received
        self._received = []
