"""Encodes answers as JSON, with U+FFFD for characters that UTF-8 cannot represent.

File names may have undecodable bytes, and a run's JSON may have lone surrogates.
"""

import msgspec


def encode_json(value: object) -> bytes:
    """Returns the value as JSON, with null for numbers that are not finite."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_well_formed(value))


def well_formed(text: str) -> str:
    """Returns the text with U+FFFD for lone surrogates."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _well_formed(value: object) -> object:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {_well_formed(name): _well_formed(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item) for item in value]
    return value
