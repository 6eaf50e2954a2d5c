"""Codes of float32 vectors: `blocks` takes one byte per element, `none` takes four.

Decoding rounds at most once, so a message has the same values on every processor.
"""

from typing import Protocol

import torch

BLOCK = 256  # elements that share a scale in `blocks`
FLOAT32 = 4  # bytes
SMALLEST_SCALE = torch.finfo(torch.float32).tiny


class Quantiser(Protocol):
    def size(self, elements: int) -> int:
        """Returns the size of a coded message in bytes."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Returns [n] float32 values as [size(n)] uint8, which may share their memory.

        If a value is not finite, decoded values are not finite either.
        """

    def decode(self, message: torch.Tensor, elements: int) -> torch.Tensor:
        """Returns the decoded values, [elements] float32."""


class Blocks:
    """Signed bytes with a float32 scale per block of 256 elements: its largest magnitude / 127.

    The error of an element is at most its block's largest magnitude / 254. A block with a scale below 2^-126
    is coded as zero. A message is the scales, then the bytes.
    """

    def size(self, elements: int) -> int:
        return FLOAT32 * _blocks(elements) + elements

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        blocks = _padded(values).view(-1, BLOCK)
        scales = blocks.abs().amax(1) / 127
        scales[scales < SMALLEST_SCALE] = 0
        quotients = (blocks / scales[:, None]).round_()
        codes = quotients.nan_to_num_(0, 0, 0).to(torch.int8).view(-1)  # 0 if the scale is 0 or not finite
        return torch.cat([scales.view(torch.uint8), codes[: len(values)].view(torch.uint8)])

    def decode(self, message: torch.Tensor, elements: int) -> torch.Tensor:
        scales, codes = message.split([FLOAT32 * _blocks(elements), elements])
        blocks = _padded(codes.view(torch.int8).to(torch.float32)).view(-1, BLOCK)
        return (blocks * scales.clone().view(torch.float32)[:, None]).view(-1)[:elements]


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def _padded(values: torch.Tensor) -> torch.Tensor:
    """Returns the values, padded with zeros to a multiple of the block."""
    return torch.nn.functional.pad(values, (0, -len(values) % BLOCK))


class Unquantised:
    """The four bytes of each float32 value."""

    def size(self, elements: int) -> int:
        return FLOAT32 * elements

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone().view(torch.uint8)

    def decode(self, message: torch.Tensor, elements: int) -> torch.Tensor:
        return message.clone().view(torch.float32)


QUANTISERS: dict[str, Quantiser] = {"blocks": Blocks(), "none": Unquantised()}
