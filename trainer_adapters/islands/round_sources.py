"""Finds and fetches the kept rounds of other islands, and tries one source after the other."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from safetensors import SafetensorError

from contracts.store.download import Transfer, TransferError, read_small
from contracts.store.errors import StoreError
from contracts.store.fetcher import Fetcher
from contracts.store.layout import latest_path, manifest_path
from contracts.store.object_files import ObjectFiles
from contracts.store.rules import PullProgress, PullRules
from contracts.store.source_client import SourceClient
from contracts.store.sources import Sources
from trainer_adapters.islands import tensor_files
from trainer_adapters.islands.outer import OuterGradient, Snapshot
from trainer_adapters.islands.round_files import (
    MAX_BYTES,
    RUN,
    KeptFile,
    KeptRound,
    Newest,
    gradient_in,
    state_in,
)

log = logging.getLogger(__name__)

Named = TypeVar("Named", bound=BaseModel)
Kept = TypeVar("Kept")
UNFIT = (StoreError, SafetensorError, OSError, ValueError, KeyError, TypeError)


class RoundSources:
    """What other islands keep. Files are fetched into `directory`, and what is there is not fetched again."""

    def __init__(self, directory: Path, urls: Sequence[str], timeout_s: float):
        self._urls = urls
        self._rules = PullRules(idle_timeout_s=timeout_s)
        self._objects = ObjectFiles(directory)
        self._client = SourceClient(Sources(urls), self._rules)

    async def gradients(self, begin: int, end: int) -> list[OuterGradient] | None:
        """Returns the gradients of rounds `begin` to `end`, without `end`. Returns None if one is missing."""
        try:
            rounds = [await self._round(number, self._client) for number in range(begin, end)]
            return await self._contents([kept.gradient for kept in rounds], self._client, gradient_in)
        except UNFIT as error:
            log.warning("the gradients of rounds %d to %d: %s", begin, end - 1, error)
            return None

    async def newest(self) -> Snapshot | None:
        """Returns the newest state that a source gives, or None."""
        found = [state for url in self._urls if (state := await self._state_of(url))]
        return max(found, key=lambda state: state.round, default=None)

    async def _state_of(self, url: str) -> Snapshot | None:
        client = SourceClient(Sources([url]), self._rules)
        try:
            newest = await self._named(latest_path(RUN), Newest, client)
            kept = await self._round(newest.round, client)
            states = [kept.state] if kept.state else []
            found = await self._contents(states, client, state_in)
        except UNFIT as error:
            log.warning("the newest state of %s: %s", url, error)
            return None
        finally:
            await client.close()
        return found[0] if found else None

    async def _round(self, number: int, client: SourceClient) -> KeptRound:
        return await self._named(manifest_path(RUN, number), KeptRound, client)

    async def _named(self, path: str, model: type[Named], client: SourceClient) -> Named:
        async def fetch(transfer: Transfer) -> Named:
            text = await read_small(transfer, path, MAX_BYTES)
            try:
                return model.model_validate_json(text)
            except ValueError as error:
                raise TransferError(f"gave something else than {path}") from error

        return await client.obtain(path, fetch)

    async def _contents(
        self,
        files: Sequence[KeptFile],
        client: SourceClient,
        read: Callable[[tensor_files.Contents], Kept],
    ) -> list[Kept]:
        await Fetcher(client, self._objects).fetch([file.wanted for file in files], PullProgress())
        return [read(tensor_files.read(self._objects.path(file.sha256))) for file in files]

    async def close(self) -> None:
        await self._client.close()
