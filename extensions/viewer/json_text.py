"""Encodes answers as JSON, also where a run's text is no text.

Names of files may have bytes that are no text, and JSON that a run wrote may have half of a surrogate pair.
UTF-8 has no such characters, so pages show U+FFFD for each.
"""

import msgspec


def encode_json(value: object) -> bytes:
    """Returns the value as JSON, in which a number that is not finite is null."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_well_formed(value))


def well_formed(text: str) -> str:
    """Returns the text with U+FFFD for what is no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _well_formed(value: object) -> object:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {_well_formed(name): _well_formed(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item) for item in value]
    return value
