"""What islands compute, written a second time from the design: in float64, element by element, without torch.

A float32 operation is one in float64 that is then rounded, which gives the same bits. The tests hold the code
against this file, so it must not import the code.
"""

import math
from collections.abc import Sequence

import numpy as np

BLOCK = 256
TINY = 2.0**-126


def float32(value: float) -> float:
    """Returns the float32 nearest to a float64."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def half_even(value: float) -> int:
    below = math.floor(value)
    rest = value - below
    if rest == 0.5:
        return below if below % 2 == 0 else below + 1
    return below if rest < 0.5 else below + 1


def code_block(block: Sequence[float]) -> tuple[float, list[int]]:
    """Returns the scale and the codes of one block of `blocks`."""
    scale = float32(max(abs(value) for value in block) / 127)
    if scale < TINY:
        return 0.0, [0] * len(block)
    return scale, [half_even(float32(value / scale)) for value in block]


def blocks_of(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[first : first + BLOCK] for first in range(0, len(values), BLOCK)]


def encode(values: Sequence[float]) -> bytes:
    """Returns the message of `blocks`: all scales, then all codes."""
    coded = [code_block(block) for block in blocks_of(values)]
    scales = np.array([scale for scale, _ in coded], np.float32)
    codes = np.array([code for _, block in coded for code in block], np.int8)
    return scales.tobytes() + codes.tobytes()


def decode(message: bytes, elements: int) -> list[float]:
    count = math.ceil(elements / BLOCK)
    scales = np.frombuffer(message[: 4 * count], np.float32).astype(np.float64)
    codes = np.frombuffer(message[4 * count :], np.int8).astype(np.float64)
    return [float32(codes[place] * scales[place // BLOCK]) for place in range(elements)]


def parts(elements: int, members: int) -> list[tuple[int, int]]:
    """Returns the spans of the ring's parts, of almost equal numbers of blocks."""
    count = math.ceil(elements / BLOCK)
    edges = [min(BLOCK * (count * part // members), elements) for part in range(members + 1)]
    return list(zip(edges, edges[1:], strict=False))


def ring(vectors: Sequence[Sequence[float]]) -> list[bytes]:
    """Returns the message of each part.

    Part p begins at member p and travels to the right; it is coded once more by each member that it reaches.
    """
    members = len(vectors)
    messages = []
    for part, (begin, end) in enumerate(parts(len(vectors[0]), members)):
        partial = [float(value) for value in vectors[part][begin:end]]
        arrived: list[float] = []
        for step in range(members):
            if step:
                added = vectors[(part + step) % members][begin:end]
                partial = [float32(ours + float(own)) for ours, own in zip(arrived, added, strict=True)]
            message = encode(partial)
            arrived = decode(message, len(partial))
        messages.append(message)
    return messages


def mean_drift(anchor: np.ndarray, models: Sequence[np.ndarray], updates: Sequence[int]) -> np.ndarray:
    """Returns the mean of the drifts from the anchor, each weighing as the updates that are in it."""
    drifts = [anchor - model for model in models]
    return sum(n * drift for n, drift in zip(updates, drifts, strict=True)) / sum(updates)


def nesterov(
    anchor: np.ndarray, momentum: np.ndarray, gradient: np.ndarray, lr: float, beta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the anchor and the momentum after one step, as torch's SGD makes it with `nesterov`."""
    momentum = beta * momentum + gradient
    return anchor - lr * (gradient + beta * momentum), momentum
