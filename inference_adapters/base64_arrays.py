"""Encodes numbers as the contract's arrays: base64 of little-endian int32 or float32."""

import struct
from binascii import b2a_base64
from collections.abc import Sequence


def int32(values: Sequence[int]) -> str:
    """Returns token ids as a base64 array."""
    return _base64(struct.pack(f"<{len(values)}i", *values))


def float32(values: Sequence[float]) -> str:
    """Returns log-probabilities as a base64 array, each rounded to the nearest float32."""
    return _base64(struct.pack(f"<{len(values)}f", *values))


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()
