"""Streams on a Redis server, for processes on several machines.

    pipelinerl:<run>:stream:<name>    a Redis Stream; an entry's ID is `<offset after the record>-0`
    pipelinerl:<run>:writer:<name>    its writer and its end (see `scripts`)
    pipelinerl:<run>:names            the set of streams

Offsets are byte positions, which stay valid after trimming. A writer owns its stream while the server lists a
connection of its name. A writer that was replaced is refused at its next append. When an append returns, the
record is in the server's memory; the server's configuration decides which data survive its end. Writers are
not thread-safe.
"""

import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from contracts.records import Record, decode, encode
from extensions.redis_streams.connection import Connection
from extensions.redis_streams.scripts import APPEND, CLAIM, TRIM
from pipelinerl.streams.base import (
    Entry,
    StreamBusyError,
    StreamCorruptError,
    StreamError,
    StreamReader,
    Streams,
    StreamTrimmedError,
    StreamWriter,
    do_nothing,
)
from pipelinerl.streams.full_storage import retry_while_full

LONGEST_BLOCK_S = 5.0  # longest block of an XREAD, well below the time limit of an answer
READ_ENTRIES = 32  # largest number of entries of an XREAD; an entry may have megabytes


class Keys(NamedTuple):
    name: str
    stream: str
    writer: str
    names: str


class RedisStreams(Streams):
    """Streams on a Redis server. Every key contains `run`, so runs can share a server.

    keep_bytes: size above which a writer deletes the oldest records, except protected records and events.
    on_wait: called every few seconds while a call waits for the server.
    """

    def __init__(
        self, url: str, run: str, keep_bytes: int | None = None, on_wait: Callable[[], object] = do_nothing
    ):
        self._on_wait = on_wait
        self._url = url
        self._prefix = f"pipelinerl:{run}"
        self._keep_bytes = keep_bytes
        self._connection = Connection(url, connection_name("reader"), on_wait=on_wait)

    def writer(self, name: str) -> "RedisWriter":
        keep_bytes = None if name.endswith("_events") else self._keep_bytes
        return RedisWriter(self._url, self._keys(name), keep_bytes, self._on_wait)

    def reader(self, name: str) -> "RedisReader":
        return RedisReader(self._connection, self._keys(name))

    def sync(self, names: Sequence[str]) -> None:
        """Does nothing, because the server's configuration decides when an append is on its disk."""

    def names(self) -> list[str]:
        names = self._connection.call(lambda client: client.smembers(f"{self._prefix}:names"))
        return sorted(name.decode() for name in names)

    def _keys(self, name: str) -> Keys:
        stream, writer = (f"{self._prefix}:{kind}:{name}" for kind in ("stream", "writer"))
        return Keys(name, stream, writer, f"{self._prefix}:names")


class RedisWriter(StreamWriter):
    def __init__(self, url: str, keys: Keys, keep_bytes: int | None, on_wait: Callable[[], object]):
        self._on_wait = on_wait
        self._keys = keys
        self._keep_bytes = keep_bytes
        self._protected: int | None = None
        self._holder = f"{connection_name(keys.name)}:{secrets.token_hex(4)}"
        self._connection = Connection(url, self._holder, on_wait=on_wait)
        try:
            self.end = self._claim()
        except StreamError:
            self.close()
            raise

    def _append(self, record: Record) -> int:
        payload = encode(record)
        end = self.end + len(payload)
        arguments = [self._holder, self.end, end, payload, self._unprotected(end)]
        holder, reached = self._run(APPEND, [self._keys.stream, self._keys.writer], arguments)
        self._check_holder(holder)
        if int(reached) != end:
            raise StreamError(
                f"the Redis server {self._connection.server} has lost what stream {self._keys.name} held: "
                f"its end is {int(reached)}, and was {self.end}"
            )
        self.end = end
        return end

    def last(self) -> Record | None:
        found = self._connection.call(lambda client: client.xrevrange(self._keys.stream, count=1))
        return entry_of(*found[0], self._keys).record if found else None

    def protect(self, from_offset: int) -> None:
        self._protected = from_offset

    def trim(self, before_offset: int) -> None:
        """Deletes all records before the offset, except the newest one."""
        before = max(min(before_offset, self.end - 1), 0)
        holder = self._run(TRIM, [self._keys.stream, self._keys.writer], [self._holder, before])
        self._check_holder(holder)

    def close(self) -> None:
        self._connection.close()

    def _unprotected(self, end: int) -> int:
        """Returns the offset before which retention may delete records of a stream that ends at `end`."""
        if self._keep_bytes is None:
            return 0
        limit = max(end - self._keep_bytes, 0)
        return limit if self._protected is None else min(limit, self._protected)

    def _claim(self) -> int:
        while True:
            holder = self._connection.call(lambda client: client.hget(self._keys.writer, "holder"))
            holder = holder.decode() if holder else ""
            connected = self._connection.call(lambda client: client.client_list())
            if any(client["name"] == holder != "" for client in connected):
                writer = format_holder(holder)
                raise StreamBusyError(f"stream {self._keys.name} is being written to by {writer}")
            claim = [holder, self._holder, self._keys.name]
            end = self._run(CLAIM, [self._keys.writer, self._keys.names], claim)
            if end is not None:
                return int(end)

    def _run(self, script: str, keys: list[str], arguments: list) -> object:
        def run() -> object:
            return self._connection.call(lambda client: client.register_script(script)(keys, arguments))

        place = f"the Redis server {self._connection.server}"
        return retry_while_full(run, self._keys.name, place, self._on_wait)

    def _check_holder(self, holder: bytes | None) -> None:
        if holder is None or holder.decode() != self._holder:
            taken = f"{format_holder(holder.decode())} has taken it over" if holder else None
            now = taken or "the server knows no writer of it"
            raise StreamBusyError(f"stream {self._keys.name} is no longer written by this process: {now}")


class RedisReader(StreamReader):
    def __init__(self, connection: Connection, keys: Keys):
        self._connection = connection
        self._keys = keys

    def read(self, from_offset: int = 0, timeout_s: float | None = None) -> Iterator[Entry]:
        self._check_within(from_offset)
        stream = f"stream {self._keys.name}"
        offset = from_offset
        while True:
            until = math.inf if timeout_s is None else time.monotonic() + timeout_s
            while not (found := self._poll(offset, until - time.monotonic())):
                if time.monotonic() >= until:
                    return
            for entry_id, fields in found:
                begin = begin_of(entry_id, fields, self._keys)
                if begin > offset:
                    raise StreamTrimmedError(f"{stream} is trimmed: it begins at {begin}, not at {offset}")
                if begin < offset:
                    raise StreamCorruptError(f"{stream} has no record that begins at {offset}")
                entry = entry_of(entry_id, fields, self._keys)
                yield entry
                offset = entry.next_offset

    def first_offset(self) -> int:
        found = self._connection.call(lambda client: client.xrange(self._keys.stream, count=1))
        return begin_of(*found[0], self._keys) if found else 0

    def _poll(self, offset: int, wait_s: float) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Returns the entries after the offset. Waits for them for at most `wait_s`."""
        block = math.ceil(1000 * min(wait_s, LONGEST_BLOCK_S)) if wait_s > 0 else None
        position = {self._keys.stream: f"{offset}-0"}
        found = self._connection.call(lambda client: client.xread(position, READ_ENTRIES, block))
        return found[0][1] if found else []

    def _check_within(self, offset: int) -> None:
        end = int(self._connection.call(lambda client: client.hget(self._keys.writer, "end")) or 0)
        if offset > end:
            raise StreamError(f"offset {offset} lies beyond the end ({end}) of stream {self._keys.name}")


def begin_of(entry_id: bytes, fields: dict[bytes, bytes], keys: Keys) -> int:
    if b"record" not in fields:
        raise StreamCorruptError(f"stream {keys.name} holds no record at {entry_id.decode()}")
    return int(entry_id.split(b"-")[0]) - len(fields[b"record"])


def entry_of(entry_id: bytes, fields: dict[bytes, bytes], keys: Keys) -> Entry:
    begin = begin_of(entry_id, fields, keys)
    try:
        return Entry(decode(fields[b"record"]), begin + len(fields[b"record"]))
    except msgspec.MsgspecError as error:
        raise StreamCorruptError(f"stream {keys.name} holds no known record at {begin}: {error}") from error


def connection_name(purpose: str) -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{purpose}"


def format_holder(holder: str) -> str:
    """Returns the holder of a stream, given as a connection name, for messages."""
    host, process, *_ = holder.split(":")
    return f"process {process} on {host}"
