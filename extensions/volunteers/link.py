"""Invite links: `https://HOST/#TOKEN`. The token has the gateway's public key and the invite's secret."""

import base64
import binascii
import secrets
from typing import NamedTuple
from urllib.parse import urlsplit

SECRET_BYTES = 16
KEY_BYTES = 32


class Link(NamedTuple):
    """url: of the gateway, without a slash at its end. gateway: its public key, as hex. secret: as hex."""

    url: str
    gateway: str
    secret: str

    @property
    def text(self) -> str:
        token = base64.urlsafe_b64encode(bytes.fromhex(self.gateway + self.secret)).decode().rstrip("=")
        return f"{self.url}/#{token}"


def new_link(url: str, gateway: str) -> Link:
    """Returns a link with a new secret."""
    return Link(url.rstrip("/"), gateway, secrets.token_hex(SECRET_BYTES))


def link_of(text: str) -> Link:
    """Reads a link. Raises ValueError, with a one-line message."""
    parts = urlsplit(text.strip())
    try:
        token = base64.b64decode(parts.fragment + "=" * (-len(parts.fragment) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        token = b""
    if parts.scheme not in ("http", "https") or not parts.hostname or len(token) != KEY_BYTES + SECRET_BYTES:
        raise ValueError(
            "this is no invite link; it looks like https://HOST/#TOKEN, and the operator of the run makes it "
            "with `python -m extensions.volunteers invite`"
        )
    url = parts._replace(path=parts.path.rstrip("/"), query="", fragment="").geturl()
    return Link(url, token[:KEY_BYTES].hex(), token[KEY_BYTES:].hex())
