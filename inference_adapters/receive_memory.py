"""Memory into which weights are received and from which they are served, without a copy.

An engine that serves the received tensors themselves needs two sets of buffers, used in turn. Allocating
memory for each update would take longer than receiving it.
"""

from collections.abc import Callable

import torch


class ReceiveMemory:
    """The buffers of the served weights, and of those that they replaced."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []
        self._served: list[torch.Tensor] = []
        self._received: list[torch.Tensor] = []

    def begin(self) -> Callable[[int], torch.Tensor]:
        """Begins an update. Returns an allocator, which returns a buffer of a given number of bytes.

        If the update fails, its memory is not reused: an abandoned thread may still receive into it.
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
        """Records that the update's weights are served, so that the previous ones' memory can be reused."""
        self._spare = self._served
        self._served = self._received
        self._received = []
