"""The rounds that a rank keeps in a directory and serves to the same rank of the other islands.

The directory has the layout of a weight store, so that its origin and its client are used:

    objects/SHA256            a safetensors file with a gradient or a state
    runs/rounds/NUMBER.json   the files of a round
    runs/rounds/latest.json   the newest round
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent import futures
from pathlib import Path
from typing import TypeVar

import uvicorn

from contracts.support.addresses import in_url
from contracts.support.files import write_atomically
from contracts.support.messages import first_line
from extensions.islands import tensor_files
from extensions.islands.outer import OuterGradient, Snapshot
from extensions.islands.round_files import (
    RUN,
    KeptFile,
    KeptRound,
    Newest,
    gradient_contents,
    state_contents,
)
from extensions.islands.round_sources import RoundSources
from extensions.stored_weights.store.layout import latest_path, manifest_path, object_path, stored_versions
from extensions.stored_weights.store.local_files import sha256_of
from extensions.stored_weights.store.origin import create_app

log = logging.getLogger(__name__)

STATES = 2  # newest rounds whose states are kept
SHUTDOWN_S = 1  # longest wait for open transfers
CLOSE_S = 5.0
LEAST_S = 0.001
LOCK = "lock"
UNFINISHED = "own"
OWN_FILE = re.compile(f"[0-9a-f]{{64}}.*|{UNFINISHED}")  # other files in the directory are not removed

Result = TypeVar("Result")


class KeptRounds:
    """Keeps rounds on disk or in `/dev/shm`, and fetches those of others, in one thread."""

    def __init__(self, directory: Path, keep: int, address: str):
        """Starts to serve the directory. keep: the number of gradients. address: the address to listen at.

        Raises OSError if the directory or the address cannot be used, or another process uses the directory.
        """
        self._directory = directory
        self._make_directories()
        self._lock = _locked(directory)
        self._keep = max(keep, STATES)
        self._first = True
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="kept-rounds")
        self._written: futures.Future | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(directory),
                ws="none",
                lifespan="off",
                timeout_graceful_shutdown=SHUTDOWN_S,
                log_level="error",
            )
        )
        listener = socket.create_server(
            (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
        )
        self.url = f"http://{in_url(address)}:{listener.getsockname()[1]}/"
        self._serving = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._serving.start()

    def _make_directories(self) -> None:
        for name in ("objects", "parts", f"runs/{RUN}"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)

    def _restore_directories(self) -> None:
        """Creates removed directories again. Raises OSError if another process has locked them meanwhile."""
        self._make_directories()
        if not (self._directory / LOCK).exists():
            lock = _locked(self._directory)
            os.close(self._lock)
            self._lock = lock

    # --- keeping ------------------------------------------------------------------------------

    def begin(self, state: Snapshot) -> None:
        if state.round > 0:
            self._submit(state.round - 1, None, state)

    def keep(self, gradient: OuterGradient, state: Snapshot) -> None:
        self._submit(gradient.round, gradient, state)

    def _submit(self, number: int, gradient: OuterGradient | None, state: Snapshot) -> None:
        self.wait_ended()
        self._written = self._thread.submit(self._write, number, gradient, state)

    def wait_ended(self) -> None:
        if self._written:
            futures.wait([self._written])

    def _write(self, number: int, gradient: OuterGradient | None, state: Snapshot) -> None:
        """Keeps a round. If that fails, a warning is logged, and training continues."""
        try:
            self._restore_directories()
            if self._first:  # removes rounds of another run, or after the loaded checkpoint
                self._remove(lambda round: round >= number + (gradient is None))
                self._first = False
            self._tidy(number - 1)
            before = self._read(number)
            kept = KeptRound(
                round=number,
                gradient=self._add(gradient_contents(gradient)) if gradient else before and before.gradient,
                state=self._add(state_contents(state)),
            )
            self._name(kept)
            write_atomically(self._path(None), Newest(round=number).model_dump_json())
        except Exception as error:
            log.warning("round %d is not kept: %s", number, first_line(error))
        with contextlib.suppress(OSError):
            self._tidy(number)

    def _add(self, contents: tensor_files.Contents) -> KeptFile:
        unfinished = self._directory / "parts" / UNFINISHED
        tensor_files.write(unfinished, contents, sync=False)
        kept = KeptFile(sha256=sha256_of(unfinished), bytes=unfinished.stat().st_size)
        os.replace(unfinished, self._directory / object_path(kept.sha256))
        return kept

    def _path(self, number: int | None) -> Path:
        """Returns the path of a round's record, or of that of the newest round."""
        return self._directory / (latest_path(RUN) if number is None else manifest_path(RUN, number))

    def _name(self, kept: KeptRound) -> None:
        write_atomically(self._path(kept.round), kept.model_dump_json())

    def _read(self, number: int) -> KeptRound | None:
        """Returns the record of a round, or None. Removes a record that cannot be read."""
        try:
            return KeptRound.model_validate_json(self._path(number).read_bytes())
        except (OSError, ValueError):
            self._path(number).unlink(missing_ok=True)
            return None

    def _tidy(self, newest: int) -> None:
        """Removes old gradients and states, and all files that no round names."""
        self._remove(lambda round: round <= newest - self._keep)
        named = set()
        for number in stored_versions(self._directory, RUN):
            kept = self._read(number)
            if kept and kept.state and number <= newest - STATES:
                kept = kept.model_copy(update={"state": None})
                self._name(kept)
            named |= {file.sha256 for file in (kept and kept.gradient, kept and kept.state) if file}
        for path in [*(self._directory / "objects").iterdir(), *(self._directory / "parts").iterdir()]:
            if path.name not in named and OWN_FILE.fullmatch(path.name):
                path.unlink()

    def _remove(self, is_old: Callable[[int], bool]) -> None:
        for number in filter(is_old, stored_versions(self._directory, RUN)):
            self._path(number).unlink()

    # --- rounds of others ---------------------------------------------------------------------

    def gradients(
        self, begin: int, end: int, sources: Sequence[str], deadline: float
    ) -> list[OuterGradient] | None:
        return self._of_others(sources, deadline, lambda others: others.gradients(begin, end))

    def state(self, round: int, sources: Sequence[str], deadline: float) -> Snapshot | None:
        return self._of_others(sources, deadline, lambda others: others.state(round))

    def _of_others(
        self,
        urls: Sequence[str],
        deadline: float,
        find: Callable[[RoundSources], Coroutine[None, None, Result]],
    ) -> Result | None:
        """Returns the result of `find`, or None if a file is missing, broken or late."""

        async def found() -> Result:
            left_s = max(deadline - time.monotonic(), LEAST_S)
            sources = RoundSources(self._directory, urls, left_s)
            try:
                async with asyncio.timeout(left_s):
                    return await find(sources)
            finally:
                await sources.close()

        if not urls:
            return None
        try:
            return self._thread.submit(asyncio.run, found()).result()
        except Exception as error:  # of any kind, because others may serve anything
            log.warning("kept rounds at %s: %s", ", ".join(urls), first_line(error))
            return None

    def close(self) -> None:
        """Ends serving. The directory is kept for a restart."""
        self.wait_ended()
        self._thread.shutdown()
        self._server.should_exit = True
        self._serving.join(CLOSE_S)
        os.close(self._lock)


def _locked(directory: Path) -> int:
    """Returns the descriptor of the directory's lock. Raises OSError if another process holds it."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise OSError(f"{directory} is used by another process: set trainer.island or directory") from None
    return descriptor
