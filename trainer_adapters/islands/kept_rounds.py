"""The rounds that one rank keeps in a directory, served to the same rank of the other islands.

The directory is laid out as a store of weights is, so the store's origin serves it and its client reads it:

    objects/SHA256            a gradient, or a state: a safetensors file
    runs/rounds/NUMBER.json   names those of a round
    runs/rounds/latest.json   names the newest round
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent import futures
from pathlib import Path
from typing import TypeVar

import uvicorn

from contracts.store.layout import latest_path, manifest_path, object_path, stored_versions
from contracts.store.local_files import sha256_of
from contracts.store.origin import create_app
from contracts.support.addresses import in_url
from contracts.support.files import write_atomically
from contracts.support.listening import listening_socket
from trainer_adapters.islands import tensor_files
from trainer_adapters.islands.outer import OuterGradient, Snapshot
from trainer_adapters.islands.round_files import (
    RUN,
    KeptFile,
    KeptRound,
    Newest,
    gradient_contents,
    state_contents,
)
from trainer_adapters.islands.round_sources import RoundSources

log = logging.getLogger(__name__)

STATES = 2  # newest rounds whose state is kept

Result = TypeVar("Result")


class KeptRounds:
    """Keeps rounds on disk or in `/dev/shm`, and finds those of others. One thread does all of it."""

    def __init__(self, directory: Path, keep: int, address: str, timeout_s: float):
        """Begins to serve the directory. keep: the number of gradients. address: where it listens.

        timeout_s: the longest silence of a source. Raises OSError if the directory cannot be made.
        """
        for name in ("objects", "parts", f"runs/{RUN}"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._keep = keep
        self._timeout_s = timeout_s
        self._first = True
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="kept-rounds")
        self._written: futures.Future | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(create_app(directory), ws="none", lifespan="off", log_level="error")
        )
        listener = listening_socket(address, 0)
        self.url = f"http://{in_url(address)}:{listener.getsockname()[1]}/"
        self._serving = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._serving.start()

    # --- keeping ------------------------------------------------------------------------------

    def keep(self, gradient: OuterGradient, state: Snapshot) -> None:
        self.wait_ended()
        self._written = self._thread.submit(self._write, gradient, state)

    def wait_ended(self) -> None:
        if self._written:
            futures.wait([self._written])

    def _write(self, gradient: OuterGradient, state: Snapshot) -> None:
        """Keeps a round. If the disk does not take it, training goes on, and others cannot have it here."""
        try:
            if self._first:
                self._remove(lambda round: round >= gradient.round)  # of another run
                self._first = False
            kept = KeptRound(
                round=gradient.round,
                gradient=self._add(gradient_contents(gradient)),
                state=self._add(state_contents(state)),
            )
            self._name(gradient.round, kept)
            write_atomically(
                self._directory / latest_path(RUN), Newest(round=gradient.round).model_dump_json()
            )
            self._tidy(gradient.round)
        except OSError as error:
            log.warning("round %d is not kept: %s", gradient.round, error)

    def _add(self, contents: tensor_files.Contents) -> KeptFile:
        unfinished = self._directory / "parts" / "own"
        tensor_files.write(unfinished, contents, sync=False)
        kept = KeptFile(sha256=sha256_of(unfinished), bytes=unfinished.stat().st_size)
        os.replace(unfinished, self._directory / object_path(kept.sha256))
        return kept

    def _name(self, round: int, kept: KeptRound) -> None:
        write_atomically(self._directory / manifest_path(RUN, round), kept.model_dump_json())

    def _tidy(self, newest: int) -> None:
        """Removes old states, then old gradients, and all files that no round names."""
        self._remove(lambda round: round <= newest - self._keep)
        named = set()
        for round in stored_versions(self._directory, RUN):
            path = self._directory / manifest_path(RUN, round)
            kept = KeptRound.model_validate_json(path.read_bytes())
            if kept.state and round <= newest - STATES:
                kept = kept.model_copy(update={"state": None})
                self._name(round, kept)
            named |= {file.sha256 for file in (kept.gradient, kept.state) if file}
        for path in [*(self._directory / "objects").iterdir(), *(self._directory / "parts").iterdir()]:
            if path.name not in named:
                path.unlink()

    def _remove(self, is_old: Callable[[int], bool]) -> None:
        for round in filter(is_old, stored_versions(self._directory, RUN)):
            (self._directory / manifest_path(RUN, round)).unlink()

    # --- rounds of others ---------------------------------------------------------------------

    def gradients(self, begin: int, end: int, sources: Sequence[str]) -> list[OuterGradient] | None:
        return self._of_others(sources, lambda others: others.gradients(begin, end))

    def newest(self, sources: Sequence[str]) -> Snapshot | None:
        return self._of_others(sources, lambda others: others.newest())

    def _of_others(
        self, urls: Sequence[str], find: Callable[[RoundSources], Coroutine[None, None, Result]]
    ) -> Result | None:
        async def found() -> Result:
            sources = RoundSources(self._directory, urls, self._timeout_s)
            try:
                return await find(sources)
            finally:
                await sources.close()

        return self._thread.submit(asyncio.run, found()).result() if urls else None

    def close(self) -> None:
        """Ends serving. The directory stays, for a later life."""
        self.wait_ended()
        self._thread.shutdown()
        self._server.should_exit = True
        self._serving.join()
