"""How a server proves that it knows the token, before a client sends the token to it.

A client asks `GET /health?challenge=<hex>` without the token. The server answers `proof`: an HMAC, by the
token, of the challenge and of the `address` at which that request reached it. The address keeps a process at
another port from passing the challenge on to a real server and returning that server's proof.
"""

import hashlib
import hmac
import ipaddress
import secrets

CHALLENGE_BYTES = 32
CHALLENGE_PATTERN = r"^[0-9a-f]{32,128}$"
PREFIX = b"pipelinerl health v2\0"  # so that a proof is never a valid answer to anything else


def new_challenge() -> str:
    """Returns a random challenge, which is used once."""
    return secrets.token_hex(CHALLENGE_BYTES)


def address_of(host: str, port: int) -> str:
    """Returns `host:port` in the one form that both ends sign: an IPv4 address is never written as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def proof_of(token: str, challenge: str, address: str) -> str:
    """Returns what a server that knows `token` answers to `challenge` when it is reached at `address`."""
    message = PREFIX + address.encode() + b"\0" + challenge.encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def is_proof(proof: str, token: str, challenge: str, address: str) -> bool:
    """Returns whether `proof` can only come from a server that knows `token` and was reached at `address`."""
    return hmac.compare_digest(proof.encode(), proof_of(token, challenge, address).encode())
