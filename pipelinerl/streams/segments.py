"""Segment files, which store the records of one stream as bytes.

A stream is a directory of append-only segments. A segment's name is its start offset; offsets are byte
positions in the stream, across segments. A record is a header and a payload. The header has its own checksum,
to distinguish a damaged length from a record that is being written.

A segment is on the disk before the next one starts, so a loss of power can only damage the last one. Data
that did not reach the disk read as zeros there, in complete blocks or from any byte on, and end the stream.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from pipelinerl.streams.base import StreamCorruptError, StreamError

_HEADER = struct.Struct("<III")  # payload length, crc32 of the payload, crc32 of these two
HEADER_BYTES = _HEADER.size
_CHECKED = 8  # bytes of the header that its checksum covers
_READ_BYTES = 256 * 1024  # not larger, because a record's arrays keep the read buffer alive
_BLOCK = 4096  # bytes of a file that are written to the disk together
_BLANK = 64  # zeros at a block's end that show that the rest was never written
_SUFFIX = ".records"


def seal(framed: bytearray) -> None:
    """Writes the header of the payload that starts at HEADER_BYTES."""
    with memoryview(framed) as whole:
        struct.pack_into("<II", framed, 0, len(whole) - HEADER_BYTES, crc32(whole[HEADER_BYTES:]))
        struct.pack_into("<I", framed, _CHECKED, crc32(whole[:_CHECKED]))


def segment_path(directory: Path, start: int) -> Path:
    return directory / f"{start:020d}{_SUFFIX}"


def segment_starts(directory: Path) -> list[int]:
    """Returns the start offsets of a stream's segments, in order; none if the stream does not exist."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))


def read_payloads(path: Path, offset: int, sealed: bool) -> Iterator[tuple[memoryview, int]]:
    """Yields the complete payloads of one segment from the offset on, each with the offset after it.

    Stops at a record that is incomplete or was never written to the disk. In a `sealed` segment, which has a
    successor, such a record is corrupt. Does not cache, because a restarted writer may replace an incomplete
    record.
    """
    start = int(path.name.removesuffix(_SUFFIX))
    with path.open("rb", buffering=0) as file:
        at = offset - start
        wanted = _READ_BYTES
        if at > (size := os.fstat(file.fileno()).st_size):
            raise StreamError(f"offset {offset} lies beyond the end ({start + size}) of {path.parent}")
        while True:
            length_read = wanted
            wanted = _READ_BYTES
            data = memoryview(os.pread(file.fileno(), length_read, at))
            used = 0
            while len(data) - used >= _HEADER.size:
                length, payload_crc, header_crc = _HEADER.unpack_from(data, used)
                if crc32(data[used : used + _CHECKED]) != header_crc:
                    if not sealed and _never_written(file.fileno(), at + used, _HEADER.size):
                        return
                    raise _corrupt(path, start + at + used, "no record header there")
                end = used + _HEADER.size + length
                if end > len(data):
                    wanted = max(wanted, end - used)
                    break
                payload = data[used + _HEADER.size : end]
                if crc32(payload) != payload_crc:
                    torn = at + end == os.fstat(file.fileno()).st_size
                    if not sealed and (torn or _never_written(file.fileno(), at + used, end - used)):
                        return
                    raise _corrupt(path, start + at + used, "the record fails its checksum")
                yield payload, start + at + end
                used = end
            at += used
            if used == 0 and at + wanted > os.fstat(file.fileno()).st_size:
                break
        if sealed and len(data) > 0:
            raise _corrupt(path, start + at, "the segment ends inside the record")


def _never_written(file: int, begin: int, size: int) -> bool:
    """Returns True if a record, or one of its file system blocks, ends in zeros."""
    reach = (begin + size + _BLOCK - 1) // _BLOCK * _BLOCK  # the end of the record's last block
    data = os.pread(file, reach - begin, begin)
    first = _BLOCK - begin % _BLOCK
    parts = [data[:first], *(data[at : at + _BLOCK] for at in range(first, len(data), _BLOCK))]
    blank = any(len(part) >= _HEADER.size and not any(part[-_BLANK:]) for part in parts)
    return blank or len(data.rstrip(b"\0")) < size


def _corrupt(path: Path, offset: int, what: str) -> StreamCorruptError:
    return StreamCorruptError(f"{path} is corrupt at offset {offset}: {what}")
