"""Opening the streams of a run: from its own processes, and from outside.

The saved configuration says where they are, without a password. A run's own Redis server tells its address
to the processes that the launcher starts, by the environment; a server of the user's is named there by the
user, where its URL is more than an address.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import TypeAdapter

from pipelinerl.config import FileStreamsConfig, RedisStreamsConfig, RunConfig, StreamsConfig
from pipelinerl.process import REDIS_VARIABLE
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.redis import RedisStreams
from pipelinerl.streams.redis_connection import Connection, without_secrets
from pipelinerl.streams.redis_server import RedisServer, served


def open_streams(config: RunConfig, run_dir: Path, url: str | None = None) -> Streams:
    """As the run itself does; `url`: of the Redis server, by default as the launcher has said."""
    options = config.streams
    if options.backend == "files":
        return FileStreams(run_dir / "streams", options.segment_bytes, options.keep_bytes)
    return RedisStreams(url or os.environ[REDIS_VARIABLE], options.run, options.keep_bytes)


@contextmanager
def recorded_streams(run_dir: Path) -> Iterator[Streams]:
    """Of a run, whether it is alive or not, to read. Its own Redis server is started for so long, if it does
    not run."""
    options = _saved_options(run_dir)
    if options.backend == "files":
        yield FileStreams(run_dir / "streams")
    elif options.url:
        yield RedisStreams(_users_url(options), options.run)
    else:
        with served(run_dir / "redis") as url:
            yield RedisStreams(url, options.run)


def _saved_options(run_dir: Path) -> StreamsConfig:
    path = run_dir / "config.yaml"
    saved = yaml.safe_load(path.read_text()).get("streams") if path.exists() else None
    return TypeAdapter(StreamsConfig).validate_python(saved) if saved else FileStreamsConfig()


def _users_url(options: RedisStreamsConfig) -> str | None:
    """None: the run has a server of its own."""
    if options.run is None:  # it has not begun
        return options.url or os.environ.get(REDIS_VARIABLE)
    return options.url and os.environ.get(REDIS_VARIABLE, options.url)


class StreamsPlace(NamedTuple):
    """Where the streams of a run are, for its launcher."""

    options: StreamsConfig  # as they are saved
    url: str | None = None  # of the Redis server
    server: RedisServer | None = None  # the run's own: to be entered


def place_streams(config: RunConfig, run_dir: Path) -> StreamsPlace:
    """Starts nothing. Raises StreamError where there is no server to be had."""
    options = config.streams
    if options.backend == "files":
        return StreamsPlace(options)
    name = options.run or f"{run_dir.name}-{secrets.token_hex(4)}"
    url = _users_url(options)
    if url is None:
        server = RedisServer(run_dir / "redis")
        return StreamsPlace(options.model_copy(update={"run": name}), server.url, server)
    address = without_secrets(url)
    Connection(url, "launcher").ping(within_s=0)
    if options.run and not RedisStreams(url, name).names():
        raise StreamError(
            f"the Redis server {address} has no streams of {name}; is {REDIS_VARIABLE} another's?"
        )
    return StreamsPlace(options.model_copy(update={"run": name, "url": address}), url)
