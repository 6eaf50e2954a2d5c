"""Fetches the kept rounds of other islands, from one source after the other."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from contracts.channel import PullProgress
from extensions.islands import tensor_files
from extensions.islands.outer import OuterGradient, Snapshot
from extensions.islands.round_files import (
    MAX_BYTES,
    RUN,
    KeptFile,
    KeptRound,
    Newest,
    gradient_in,
    state_in,
)
from extensions.stored_weights.store.download import Transfer, TransferError, read_small
from extensions.stored_weights.store.errors import StoreError
from extensions.stored_weights.store.fetcher import Fetcher
from extensions.stored_weights.store.layout import latest_path, manifest_path
from extensions.stored_weights.store.object_files import ObjectFiles
from extensions.stored_weights.store.rules import PullRules
from extensions.stored_weights.store.source_client import SourceClient
from extensions.stored_weights.store.sources import Sources

Named = TypeVar("Named", bound=BaseModel)
Kept = TypeVar("Kept")


class RoundSources:
    """The kept rounds of other islands. Files are fetched into `directory`, unless they exist there.

    The methods raise StoreError if no source has a file, and errors of any kind for invalid contents.
    """

    def __init__(self, directory: Path, urls: Sequence[str], timeout_s: float):
        self._objects = ObjectFiles(directory)
        self._client = SourceClient(Sources(urls), PullRules(idle_timeout_s=timeout_s))

    async def gradients(self, begin: int, end: int) -> list[OuterGradient] | None:
        """Returns the gradients of the rounds in range(begin, end), or None if one is missing."""
        rounds = [await self._named(manifest_path(RUN, n), KeptRound) for n in range(begin, end)]
        files = [kept.gradient for kept in rounds if kept.gradient]
        return await self._contents(files, gradient_in) if len(files) == len(rounds) else None

    async def state(self, round: int) -> Snapshot | None:
        """Returns the state of this round, or the newest one before it, or None."""
        for number in (round - 1, (await self._named(latest_path(RUN), Newest)).round):
            with contextlib.suppress(StoreError):
                kept = await self._named(manifest_path(RUN, number), KeptRound)
                if kept.state and kept.round < round:
                    return (await self._contents([kept.state], state_in))[0]
        return None

    async def _named(self, path: str, model: type[Named]) -> Named:
        async def fetch(transfer: Transfer) -> Named:
            text = await read_small(transfer, path, MAX_BYTES)
            try:
                return model.model_validate_json(text)
            except ValueError as error:
                raise TransferError(f"gave something else than {path}") from error

        return await self._client.obtain(path, fetch)

    async def _contents(
        self, files: Sequence[KeptFile], read: Callable[[tensor_files.Contents], Kept]
    ) -> list[Kept]:
        await Fetcher(self._client, self._objects).fetch([file.wanted for file in files], PullProgress())
        return [read(tensor_files.read(self._objects.path(file.sha256))) for file in files]

    async def close(self) -> None:
        await self._client.close()
