"""Fetches the files of a version into the puller's directory, several at a time."""

import asyncio
import random
from collections import deque
from collections.abc import Iterable

from contracts.channel import PullProgress
from contracts.support.files import is_disk_full
from extensions.stored_weights.store.download import Transfer, download
from extensions.stored_weights.store.layout import SHORT_NAME, object_path
from extensions.stored_weights.store.object_files import ObjectFiles
from extensions.stored_weights.store.part_file import PartFile, Wanted
from extensions.stored_weights.store.source_client import SourceClient


class Fetcher:
    """Fetches files from the sources. Calls of `fetch` must not overlap."""

    def __init__(self, client: SourceClient, objects: ObjectFiles):
        self._client = client
        self._objects = objects

    async def fetch(self, files: Iterable[Wanted], progress: PullProgress) -> None:
        """Fetches all files that are not in the directory. Small ones are first, to measure the sources.

        Files of similar size are in random order, so that servers begin with different files and relays.
        Raises the first StoreError or OSError. The next call continues with the bytes received so far.
        """
        waiting = deque(sorted(files, key=lambda wanted: (wanted.bytes.bit_length(), random.random())))
        progress.bytes_total = sum(wanted.bytes for wanted in waiting)
        progress.bytes_done = 0
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._client.rules.parallel):
                    workers.create_task(self._work(waiting, progress))
        except* Exception as errors:
            raise _first(errors) from None

    async def _work(self, waiting: deque[Wanted], progress: PullProgress) -> None:
        while waiting:
            wanted = waiting.popleft()
            if await self._objects.is_here(wanted):
                progress.bytes_done += wanted.bytes
            else:
                await self._fetch(wanted, progress)

    async def _fetch(self, wanted: Wanted, progress: PullProgress) -> None:
        part = self._objects.open_part(wanted, progress)
        try:
            await part.hash_existing()
            if not part.is_right:
                await self._receive(part)
            self._objects.adopt(part)
        except OSError as error:
            if is_disk_full(error):
                self._objects.drop_part(wanted)
            raise
        finally:
            part.close()

    async def _receive(self, part: PartFile) -> None:
        name = part.wanted.sha256

        async def fetch(transfer: Transfer) -> None:
            await download(transfer, object_path(name), part)

        await self._client.obtain(f"the file {name[:SHORT_NAME]}", fetch, part.wanted.bytes)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
