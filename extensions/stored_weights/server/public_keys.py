"""Validates public keys: a key must be a point of Ed25519's curve (RFC 8032, section 5.1.3) of large order.

The library that verifies signatures accepts any 32 bytes. For a point of small order, such as zeros, anybody
can forge signatures.
"""

from contracts.channel import PublicKey
from contracts.errors import ContractError, ErrorCode

PRIME = 2**255 - 19
D = -121665 * pow(121666, -1, PRIME) % PRIME  # constant of the curve -x^2 + y^2 = 1 + D x^2 y^2
COFACTOR_DOUBLINGS = 3
SIGN_BIT = 1 << 255


def check_key(key: PublicKey) -> None:
    """Raises ContractError (`bad_key`) unless the key is a point of large order."""
    y = int.from_bytes(bytes.fromhex(key.ed25519), "little") & ~SIGN_BIT
    if y >= PRIME or not _is_point(y) or _has_small_order(y):
        why = f"the key {key.id} is no Ed25519 public key: 32 bytes as hex"
        raise ContractError(ErrorCode.BAD_KEY, why, "public_keys")


def _x_squared(y: int) -> int:
    return (y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME


def _is_point(y: int) -> bool:
    return pow(_x_squared(y), (PRIME - 1) // 2, PRIME) in (0, 1)


def _has_small_order(y: int) -> bool:
    """Returns True if eight times the point is the neutral element. Doubling needs only y and x squared."""
    for _ in range(COFACTOR_DOUBLINGS):
        squared = _x_squared(y)
        y = (y * y + squared) * pow(1 - D * squared * y * y, -1, PRIME) % PRIME
    return y == 1
