"""How a server proves that it knows the token, before a client sends the token to it.

A client asks `GET /health?challenge=<hex>` without the token. The server responds with `proof`: an HMAC,
keyed by the token, of the challenge and the `address` at which the request reached it. A process at another
port could pass the challenge on to a real server and return that server's proof. The address in the HMAC
prevents this.
"""

import hashlib
import hmac
import ipaddress
import secrets

CHALLENGE_BYTES = 32
CHALLENGE_PATTERN = r"^[0-9a-f]{32,128}$"
PREFIX = b"pipelinerl health v2\0"  # domain separator: a proof is valid for no other use of the token


def new_challenge() -> str:
    """Returns a random challenge, which is used once."""
    return secrets.token_hex(CHALLENGE_BYTES)


def address_of(host: str, port: int) -> str:
    """Returns `host:port` in the form that both sides sign: an IPv4 address is never written as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def proof_of(token: str, challenge: str, address: str) -> str:
    """Returns the proof with which a server that has `token` answers `challenge` at `address`."""
    message = PREFIX + address.encode() + b"\0" + challenge.encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def is_proof(proof: str, token: str, challenge: str, address: str) -> bool:
    """Returns whether `proof` can only come from a server that knows `token` and was reached at `address`."""
    return hmac.compare_digest(proof.encode(), proof_of(token, challenge, address).encode())
