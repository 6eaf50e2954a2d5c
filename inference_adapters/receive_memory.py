"""Double buffers for engines that serve the received tensors themselves, without a copy.

Allocating new memory for each update would take longer than receiving the update.
"""

from collections.abc import Callable

import torch


class ReceiveMemory:
    """The buffers of the served weights, and the spare buffers of the weights that they replaced."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []
        self._served: list[torch.Tensor] = []
        self._received: list[torch.Tensor] = []

    def begin(self) -> Callable[[int], torch.Tensor]:
        """Begins an update. Returns a function that allocates a buffer of a given number of bytes.

        Memory of a failed update is not reused, because an abandoned thread may still receive into it.
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
        """Call it when the update's weights are served, so that the previous weights' memory is reused."""
        self._spare = self._served
        self._served = self._received
        self._received = []

    def end(self) -> None:
        """Ends an update, and forgets its buffers unless they are served."""
        self._received = []

    def release(self, served: bool) -> None:
        """Forgets the spare buffers, and those of the served weights if `served`."""
        self._spare = []
        if served:
            self._served = []
