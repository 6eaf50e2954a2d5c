"""Reads server-sent events (HTML standard) and lines, with arrival times. Must not know the contract."""

import asyncio
import codecs
from collections.abc import AsyncIterable, Iterator

Event = tuple[float, str]  # seconds on the event loop's clock, and the data


class EventReader:
    """An incremental parser of server-sent events.

    A line ends with CRLF, LF or CR. A line that begins with a colon is a comment. One space after `data:` is
    not part of the data, and several data lines form one event.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._open = ""  # text of an incomplete line
        self._data: list[str] = []  # lines of an incomplete event

    def feed(self, received: bytes, last: bool = False) -> Iterator[str]:
        """Yields the data of the events that `received` completes."""
        text = self._open + self._decoder.decode(received, last)
        # A CR at the end may be the first half of CRLF.
        held = text[-1:] if text.endswith("\r") and not last else ""
        lines = (text.removesuffix(held) if held else text).replace("\r\n", "\n").replace("\r", "\n")
        *whole, rest = lines.split("\n")
        self._open = rest + held
        if last:
            whole += [self._open, ""]
        for line in whole:
            yield from self._read_line(line)

    def _read_line(self, line: str) -> Iterator[str]:
        if not line and self._data:
            yield "\n".join(self._data)
            self._data = []
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))


async def read_events(received: AsyncIterable[bytes]) -> list[Event]:
    """Returns the events of a stream in order, with the time at which each arrived."""
    loop = asyncio.get_running_loop()
    reader = EventReader()
    events = []
    async for piece in received:
        at = loop.time()
        events += [(at, data) for data in reader.feed(piece)]
    return events + [(loop.time(), data) for data in reader.feed(b"", last=True)]


async def read_lines(received: AsyncIterable[bytes], lines: list[Event]) -> None:
    """Appends the lines of a body to `lines` as they are completed. They end with LF, or with the body."""
    loop = asyncio.get_running_loop()
    rest = b""
    async for piece in received:
        *whole, rest = (rest + piece).split(b"\n")
        lines += [(loop.time(), line.decode(errors="replace")) for line in whole]
    if rest:
        lines.append((loop.time(), rest.decode(errors="replace")))
