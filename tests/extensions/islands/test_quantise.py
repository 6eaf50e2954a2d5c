"""The codes of vectors: their bytes, and the blocks that could go wrong."""

import math

import numpy as np
import pytest
import torch

from extensions.islands.quantise import QUANTISERS
from tests.extensions.islands import oracle

BLOCKS = QUANTISERS["blocks"]
EXTREMES = {
    "one large among small": [1e4] + [1e-4] * 255,
    "alternating signs": [(-1) ** i * (1 + i / 7) for i in range(256)],
    "halves of the scale": [127.0] + [i + 0.5 for i in range(-127, 127)],
    "negative is largest": [-3.0] + [i / 100 for i in range(255)],
    "largest float32": [3e38, -3e38, 1e38, 1.0],
    "just above the smallest scale": [127 * 2.0**-125, 2.0**-126, -(2.0**-124)],
    "zeros and one": [0.0] * 256 + [1.0],
    "nothing": [],
    "ragged": [math.sin(i) * 10 ** (i % 9 - 4) for i in range(700)],
}


def coded(values: list[float] | torch.Tensor, name: str = "blocks") -> torch.Tensor:
    vector = torch.as_tensor(values, dtype=torch.float32)
    message = QUANTISERS[name].encode(vector)
    assert message.dtype is torch.uint8
    assert message.numel() == QUANTISERS[name].size(len(vector))
    decoded = QUANTISERS[name].decode(message, len(vector))
    assert decoded.dtype is torch.float32 and decoded.shape == vector.shape
    return decoded


def message_of(values: list[float]) -> bytes:
    return bytes(BLOCKS.encode(torch.tensor(values, dtype=torch.float32)).tolist())


@pytest.mark.parametrize("case", EXTREMES)
def test_bytes_of_blocks_are_those_of_the_oracle(case):
    values = np.array(EXTREMES[case], np.float32).astype(np.float64)
    assert message_of(values.tolist()) == oracle.encode(values)
    assert coded(values.tolist()).tolist() == oracle.decode(oracle.encode(values), len(values))


def test_subnormal_blocks_are_zero_and_do_not_touch_their_neighbours():
    values = torch.cat([torch.full((256,), 1e-40), torch.ones(256), torch.full((256,), 127 * 1e-38)])
    assert coded(values).equal(torch.cat([torch.zeros(256), torch.ones(256), torch.zeros(256)]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_not_finite_stays_so_in_every_element(bad):
    values = torch.ones(512)
    values[300] = bad
    decoded = coded(values)
    assert decoded[:256].equal(torch.ones(256))
    assert not decoded[256:].isfinite().any()
    assert coded(values, "none").equal(values) or math.isnan(bad)
