"""Prescribed draws: the random number of each token of a completion, from a key that the client gives.

Token `number` (0 first) has u = (h >> 11) · 2^-53. h is the BLAKE2b-64, with the key, of `number` as 8 bytes,
little-endian throughout. The token is the first id x with F(x) > u · F(V - 1). F is the running sum, in
float64, of exp(log_softmax(logits / temperature)), which is float32.
"""

from hashlib import blake2b


def uniform(key: bytes, number: int) -> float:
    """Returns the random number in [0, 1) of token `number` of a completion. key: 32 bytes."""
    digest = blake2b(number.to_bytes(8, "little"), digest_size=8, key=key).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
