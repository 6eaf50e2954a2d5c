"""Codes of float32 vectors as bytes: `blocks` uses one byte an element, `none` uses four.

The ring sends what they return. They must not know what the numbers mean. Decoding rounds once at most, so a
message has the same values on every processor.
"""

from typing import Protocol

import torch

BLOCK = 256  # elements that share a scale in `blocks`
FLOAT32 = 4  # bytes
SMALLEST_SCALE = torch.finfo(torch.float32).tiny


class Quantiser(Protocol):
    def size(self, elements: int) -> int:
        """Returns the bytes of a message that codes so many elements."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Returns `[n]` float32 values as a new `[size(n)]` uint8 tensor, which may hold their memory.

        Values that are not finite make what is decoded not finite.
        """

    def decode(self, message: torch.Tensor, elements: int) -> torch.Tensor:
        """Returns a message as `[elements]` float32 values."""


class Blocks:
    """Signed bytes, and for each block of 256 elements a float32 scale, which is its largest magnitude / 127.

    The error of an element is at most its block's largest magnitude / 254. A block whose scale would be below
    2^-126 is coded as zero. The message is the scales, then the bytes.
    """

    def size(self, elements: int) -> int:
        return FLOAT32 * _blocks(elements) + elements

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        blocks = _padded(values).view(-1, BLOCK)
        scales = blocks.abs().amax(1) / 127
        scales[scales < SMALLEST_SCALE] = 0
        quotients = (blocks / scales[:, None]).round_()
        codes = quotients.nan_to_num_(0, 0, 0).to(torch.int8).view(-1)  # where the scale is 0 or not finite
        return torch.cat([scales.view(torch.uint8), codes[: len(values)].view(torch.uint8)])

    def decode(self, message: torch.Tensor, elements: int) -> torch.Tensor:
        scales, codes = message.split([FLOAT32 * _blocks(elements), elements])
        blocks = _padded(codes.view(torch.int8).to(torch.float32)).view(-1, BLOCK)
        return (blocks * scales.clone().view(torch.float32)[:, None]).view(-1)[:elements]


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def _padded(values: torch.Tensor) -> torch.Tensor:
    """Returns the values with zeros after them, up to a multiple of the block."""
    return torch.nn.functional.pad(values, (0, -len(values) % BLOCK))


class Unquantised:
    """The four bytes of each float32 value, as they are."""

    def size(self, elements: int) -> int:
        return FLOAT32 * elements

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone().view(torch.uint8)

    def decode(self, message: torch.Tensor, elements: int) -> torch.Tensor:
        return message.clone().view(torch.float32)


QUANTISERS: dict[str, Quantiser] = {"blocks": Blocks(), "none": Unquantised()}
