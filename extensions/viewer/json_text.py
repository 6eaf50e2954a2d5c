"""Encodes answers as JSON, even if strings contain lone surrogates.

Lone surrogates come from file names that are not UTF-8, and from JSON that a run wrote. Each becomes U+FFFD.
"""

import msgspec


def encode_json(value: object) -> bytes:
    """Encodes the value as JSON. Numbers that are not finite become null."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_well_formed(value))


def well_formed(text: str) -> str:
    """Returns the text with U+FFFD in place of each lone surrogate."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _well_formed(value: object) -> object:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {_well_formed(name): _well_formed(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item) for item in value]
    return value
