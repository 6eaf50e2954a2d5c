"""Reads the records of an offline run of Weights & Biases: protobuf in the log format of LevelDB."""

import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

HEADER = 7  # bytes of the file's header, and of each piece's
BLOCK = 32768
FULL = 1  # kinds of pieces of a record; kind 3 is a middle piece
FIRST = 2
LAST = 4


def records_of(path: Path) -> Iterator[Record]:
    """Yields the complete records. W&B has no reader of its file in Python."""
    data = path.read_bytes()
    position = HEADER
    record = b""
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        if position + HEADER > len(data):
            return
        _, length, kind = struct.unpack_from("<IHB", data, position)
        piece = data[position + HEADER : position + HEADER + length]
        if len(piece) < length:
            return
        record = piece if kind in (FULL, FIRST) else record + piece
        position += HEADER + length
        if kind in (FULL, LAST):
            yield Record.FromString(record)


def rows_of(path: Path) -> int:
    """Returns the number of metrics lines in the file."""
    return sum(record.HasField("history") for record in records_of(path))
