"""Challenge and response by which a server proves that it knows the token, before a client sends the token.

A client requests `GET /health?challenge=<hex>` without the token. The server responds with `proof`: an HMAC,
keyed by the token, of the challenge and the `address` at which the request reached it. Without the address
in the HMAC, a process at another port could forward the challenge to a real server and return its proof.
"""

import hashlib
import hmac
import ipaddress
import secrets

CHALLENGE_BYTES = 32
CHALLENGE_PATTERN = r"^[0-9a-f]{32,128}$"
PREFIX = b"pipelinerl health v2\0"  # domain separator: a proof is valid for no other use of the token


def new_challenge() -> str:
    """Returns a random challenge. Use each challenge once."""
    return secrets.token_hex(CHALLENGE_BYTES)


def address_of(host: str, port: int) -> str:
    """Returns the normalised `host:port` that both sides sign. An IPv4-mapped IPv6 address becomes IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def proof_of(token: str, challenge: str, address: str) -> str:
    """Returns the proof, as hex, that a server with `token` at `address` sends for `challenge`."""
    message = PREFIX + address.encode() + b"\0" + challenge.encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def is_proof(proof: str, token: str, challenge: str, address: str) -> bool:
    """Returns True if `proof` is that of a server which knows `token` and was reached at `address`."""
    return hmac.compare_digest(proof.encode(), proof_of(token, challenge, address).encode())
