"""Reads the rows of a JSON file with all values as text.

The value of a string is its content, and any other value its JSON. Libraries that infer types turn 007 into
7, 1e-05 into a float, and "2020-01-01" into a time.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

Values = Mapping[str, msgspec.Raw]
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json(path: Path) -> list[Values]:
    """Returns the rows of a file with an array of objects, or an object on each line.

    Raises ValueError, with the line, for any other file.
    """
    content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    _check_utf8(path, content)
    if content.lstrip()[:1] == b"[":
        return _decoded(content, list[dict[str, msgspec.Raw]], str(path))
    lines = enumerate(content.splitlines(), 1)
    rows = ((number, line) for number, line in lines if line.strip())
    return [_decoded(line, dict[str, msgspec.Raw], f"{path}, line {number}") for number, line in rows]


def value_at(row: Values, field: str) -> msgspec.Raw | None:
    """Returns the value of a field, whose dots lead into nested objects, or None."""
    if field in row:
        return row[field]
    name, _, rest = field.partition(".")
    if not rest or name not in row or bytes(row[name])[:1] != b"{":
        return None
    return value_at(msgspec.json.decode(row[name], type=dict[str, msgspec.Raw]), rest)


def as_text(value: msgspec.Raw) -> str | None:
    """Returns the content of a string, None for null, and the JSON of any other value."""
    written = bytes(value).strip()
    if written[:1] == b'"':
        return msgspec.json.decode(written, type=str)
    return None if written == b"null" else written.decode()


def _check_utf8(path: Path, content: bytes) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: it is not written in UTF-8; convert the file") from None


def _decoded(content: bytes, kind: type, where: str):
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{where}: {error}") from None  # the launcher would show the cause alone
