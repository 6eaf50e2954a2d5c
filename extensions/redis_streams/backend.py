"""The stream backend on a Redis server, which the run starts or the user provides.

The saved configuration contains the server's address without a password. The launcher passes the URL to the
run's processes in the environment. A user whose server has a password sets the URL in the environment.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pydantic import Field

from contracts.support.addresses import is_loopback
from extensions.redis_streams.connection import REDIS_VARIABLE, Connection, without_secrets
from extensions.redis_streams.server import served
from extensions.redis_streams.streams import RedisStreams
from pipelinerl.config import Int, RunConfig, Section
from pipelinerl.streams import StreamError
from pipelinerl.streams.base import do_nothing
from pipelinerl.streams.of_run import StreamsBackend


class Redis(StreamsBackend):
    """Streams on a Redis server (`streams=redis`). `run` is the run's name there."""

    class Options(Section):
        url: str | None = Field(
            None, description="URL of the server; null = PIPELINERL_REDIS_URL, or the run starts a server."
        )
        keep_bytes: Int = Field(1 << 30, ge=4096, description="Bytes to keep per stream, except events.")

    options: Options
    spans_nodes = True

    def open(self, on_wait: Callable[[], object] = do_nothing) -> RedisStreams:
        url = {**os.environ, **self.environment}[REDIS_VARIABLE]
        return RedisStreams(url, self.run, self.options.keep_bytes, on_wait)

    @contextmanager
    def recorded(self) -> Iterator[RedisStreams]:
        """Opens the streams for reading, and starts the run's own server for the block if it does not run."""
        if self.options.url:
            yield self._existing(os.environ.get(REDIS_VARIABLE, self.options.url))
            return
        with served(self.run_dir / "redis") as url:
            yield RedisStreams(url, self.run)

    def locate(self, config: RunConfig, address: str) -> None:
        begun = self.run is not None
        given = os.environ.get(REDIS_VARIABLE)
        # The saved URL has no password, and there is none for the run's own server.
        url = self.options.url and (given or self.options.url) if begun else self.options.url or given
        self.run = self.run or f"{self.run_dir.name}-{secrets.token_hex(4)}"
        if url is None:
            from extensions.redis_streams.own_server import OwnServer  # imports parts of the launcher

            self.place = "a Redis server of the run's own, on a free port"
            self.server = OwnServer(self.run_dir / "redis", address, config.restarts.services)
            self.environment = {REDIS_VARIABLE: self.server.url}
            if self.server.missing and not config.plan:
                raise StreamError(self.server.missing)
            return
        shown = without_secrets(url)
        if not is_loopback(address) and urlsplit(shown).hostname in ("localhost", "127.0.0.1", "::1"):
            raise StreamError(f"the Redis server {shown} is this node's alone: name it as all nodes reach it")
        Connection(url, "launcher").ping(within_s=0)
        if begun:
            self._existing(url)
        self.place = shown
        self.options = self.options.model_copy(update={"url": shown})
        self.environment = {REDIS_VARIABLE: url}

    def _existing(self, url: str) -> RedisStreams:
        """Returns the streams of the run on the user's server. Raises StreamError if there are none."""
        streams = RedisStreams(url, self.run)
        if not streams.names():
            none = f"the Redis server {without_secrets(url)} has no streams of {self.run}"
            raise StreamError(f"{none}; is {REDIS_VARIABLE} another's?")
        return streams
