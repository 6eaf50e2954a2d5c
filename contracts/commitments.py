"""Commitments to the states of a completion, in the format of TOPLOC (arXiv 2501.16007, toploc 0.1.6).

Row t is the state that enters the output head in the forward pass whose logits gave token t. A chunk has the
rows of 32 tokens, as bfloat16 rounded to nearest even. Its proof is a polynomial over the integers modulo
65497. At the place of each of the largest elements, the polynomial has the 16 bits of that element.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

FORMAT = "toploc-1"
CHUNK = 32  # tokens
MOST_POINTS = 128  # elements of a chunk
PRIME = 65497
SMALLEST_MODULUS = 2**15 + 1

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Difference:
    """How far a chunk's proof is from rows.

    exponents: share of the points whose sign or exponent differs. mantissa: mean absolute difference of the
    others' mantissas, in units of their last place; infinite if there are no others.
    """

    exponents: float
    mantissa: float


def chunk_points(tokens: int, hidden: int) -> list[int]:
    """Returns the number of points of each chunk of a completion. hidden: elements of a row."""
    sizes = [min(CHUNK, tokens - start) * hidden for start in range(0, tokens, CHUNK)]
    return [min(MOST_POINTS, size // 3) for size in sizes]


def commit(rows: NDArray[np.float32]) -> bytes:
    """Returns the proofs of finite rows `[T, H]`, one after the other.

    A proof is the modulus of the places, and the coefficients from the constant one up: big-endian uint16.
    Raises ValueError if places of a chunk have no common modulus.
    """
    return b"".join(_proof(flat) for flat in _chunks(rows))


def compare(proofs: bytes, rows: NDArray[np.float32]) -> list[Difference]:
    """Returns the difference of each chunk from finite rows `[T, H]`.

    Raises ValueError, which says why, for what cannot be proofs of so many rows.
    """
    found = []
    for (modulus, coefficients), flat in zip(_read(proofs, *rows.shape), _chunks(rows), strict=True):
        places, values = _largest(flat)
        claimed = _evaluate(coefficients, places % modulus)
        same = values >> 7 == claimed >> 7
        apart = np.abs((values & 127) - (claimed & 127))[same]
        found.append(Difference(float(1 - same.mean()), float(apart.mean()) if len(apart) else np.inf))
    return found


def check_form(proofs: bytes, tokens: int, hidden: int) -> None:
    """Raises ValueError, which says why, for bytes that cannot be the proofs of so many tokens."""
    _read(proofs, tokens, hidden)


def _read(proofs: bytes, tokens: int, hidden: int) -> list[tuple[int, Integers]]:
    """Returns modulus and coefficients of each chunk. Raises ValueError."""
    points = chunk_points(tokens, hidden)
    wanted = sum(2 * (1 + count) for count in points)
    if len(proofs) != wanted:
        raise ValueError(f"{len(proofs)} bytes of proofs; {tokens} tokens have {wanted}")
    numbers = np.frombuffer(proofs, ">u2").astype(np.int64)
    found = []
    for chunk, count in enumerate(points):
        modulus = int(numbers[0])
        coefficients = numbers[1 : 1 + count]
        numbers = numbers[1 + count :]
        if not SMALLEST_MODULUS <= modulus <= PRIME:
            raise ValueError(f"proof {chunk} has the modulus {modulus}")
        if (coefficients >= PRIME).any():
            raise ValueError(f"proof {chunk} has the coefficient {coefficients.max()}")
        found.append((modulus, coefficients))
    return found


def _chunks(rows: NDArray[np.float32]) -> list[Integers]:
    """Returns the bits of each chunk as bfloat16, flat."""
    bits = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32).astype(np.int64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
    return [rounded[start : start + CHUNK].reshape(-1) for start in range(0, len(rounded), CHUNK)]


def _largest(flat: Integers) -> tuple[Integers, Integers]:
    """Returns places and bits of the largest elements, the first of equal ones."""
    count = min(MOST_POINTS, len(flat) // 3)
    places = np.argsort(-(flat & 0x7FFF), kind="stable")[:count]
    return places, flat[places]


def _proof(flat: Integers) -> bytes:
    places, values = _largest(flat)
    for modulus in range(PRIME, SMALLEST_MODULUS - 1, -1):
        if len(np.unique(places % modulus)) == len(places):
            coefficients = _interpolate(places % modulus, values)
            return np.array([modulus, *coefficients]).astype(">u2").tobytes()
    raise ValueError("the places of the largest elements have no common modulus")


def _interpolate(x: Integers, y: Integers) -> Integers:
    """Returns the coefficients of the polynomial through points, by Newton's divided differences."""
    inverses = _inverses()
    newton = y % PRIME
    for distance in range(1, len(x)):
        steps = newton[distance:] - newton[distance - 1 : -1]
        newton[distance:] = steps * inverses[(x[distance:] - x[:-distance]) % PRIME] % PRIME
    coefficients: Integers = np.zeros_like(newton)
    for place in range(len(x) - 1, -1, -1):
        times_x = np.roll(coefficients, 1)  # its highest coefficient is still 0
        coefficients = (times_x - coefficients * x[place]) % PRIME
        coefficients[0] = (coefficients[0] + newton[place]) % PRIME
    return coefficients


@cache
def _inverses() -> Integers:
    """Returns the inverse of each number modulo the prime: its power of `PRIME` - 2."""
    squared = np.arange(PRIME)
    found = np.ones_like(squared)
    for bit in f"{PRIME - 2:b}"[::-1]:
        if bit == "1":
            found = found * squared % PRIME
        squared = squared * squared % PRIME
    return found


def _evaluate(coefficients: Integers, x: Integers) -> Integers:
    found: Integers = np.zeros_like(x)
    for coefficient in coefficients[::-1]:
        found = (found * x + coefficient) % PRIME
    return found
