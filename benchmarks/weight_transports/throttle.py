"""Limits how fast a server sends."""

import asyncio
import time

BURST_S = 0.05  # of sending at the rate that may follow a pause at once


class TokenBucket:
    """An uplink of `bytes_per_s` that all transfers of a server share."""

    def __init__(self, bytes_per_s: float):
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    async def send(self, size: int) -> None:
        """Waits until `size` bytes have left."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - BURST_S) + size / self._bytes_per_s
        await asyncio.sleep(max(self._free_at - now, 0))
