"""The kit's source of a store over HTTP, for a block of code."""

from pathlib import Path

from extensions.stored_weights.conformance.source import OBJECTS, Source


class HttpSource(Source):
    """Serves a store until the block ends."""

    def __init__(self, store: Path):
        super().__init__(store, "127.0.0.1")

    @property
    def sent_bytes(self) -> int:
        """The bytes of objects that were sent."""
        return sum(asked.sent for asked in self.asked if asked.path.startswith(OBJECTS))

    async def __aenter__(self) -> "HttpSource":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()
