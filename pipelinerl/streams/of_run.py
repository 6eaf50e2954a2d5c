"""Opens the streams of a run, for its own processes and for other commands.

The saved configuration holds their location, without a password. For a run's own Redis server, the launcher
passes the URL to its processes in the environment. For a user's server with a password, the user sets the URL
in the environment.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from contracts.support.addresses import LOOPBACK, is_loopback
from pipelinerl.config import FileStreamsConfig, RunConfig, StreamsConfig, saved_config
from pipelinerl.process import REDIS_VARIABLE
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.base import do_nothing
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.redis import RedisStreams
from pipelinerl.streams.redis_connection import Connection, without_secrets
from pipelinerl.streams.redis_server import RedisServer, served


def open_streams(
    config: RunConfig,
    run_dir: Path,
    url: str | None = None,
    on_wait: Callable[[], object] = do_nothing,
) -> Streams:
    """Opens the streams of a run as its processes do.

    `url` is the Redis server, by default the one in the environment. `on_wait` is called every few seconds
    while an append waits for space on a disk, or a call waits for the server.
    """
    options = config.streams
    if options.backend == "files":
        return FileStreams(run_dir / "streams", options.segment_bytes, options.keep_bytes, on_wait)
    return RedisStreams(url or os.environ[REDIS_VARIABLE], options.run, options.keep_bytes, on_wait)


@contextmanager
def recorded_streams(run_dir: Path) -> Iterator[Streams]:
    """Opens the streams of a run for reading, whether the run is alive or not.

    If the run has its own Redis server and it is not running, it is started for the block.
    """
    options = _saved_options(run_dir)
    if options.backend == "files":
        yield FileStreams(run_dir / "streams")
    elif options.url:
        yield _existing(os.environ.get(REDIS_VARIABLE, options.url), options.run)
    else:
        with served(run_dir / "redis") as url:
            yield RedisStreams(url, options.run)


def _saved_options(run_dir: Path) -> StreamsConfig:
    saved = saved_config(run_dir).get("streams") if (run_dir / "config.yaml").exists() else None
    return TypeAdapter(StreamsConfig).validate_python(saved) if saved else FileStreamsConfig()


def _existing(url: str, name: str) -> RedisStreams:
    """Returns the streams of a run on the user's server. Raises StreamError if there are none."""
    streams = RedisStreams(url, name)
    if not streams.names():
        raise StreamError(
            f"the Redis server {without_secrets(url)} has no streams of {name}; "
            f"is {REDIS_VARIABLE} another's?"
        )
    return streams


class StreamsLocation(NamedTuple):
    """The location of a run's streams, for its launcher."""

    options: StreamsConfig  # the options to save
    url: str | None = None  # URL of the Redis server
    server: RedisServer | None = None  # the run's own server, which the launcher must enter


def resolve_streams(config: RunConfig, run_dir: Path, address: str = LOOPBACK) -> StreamsLocation:
    """Returns the location of a run's streams. Starts nothing. Raises StreamError if there is no server.

    `address`: the address at which the run's own server will listen.
    """
    options = config.streams
    if options.backend == "files":
        return StreamsLocation(options)
    begun = config.resume is not False
    given = os.environ.get(REDIS_VARIABLE)
    # The saved URL has no password, and there is none for the run's own server.
    url = options.url and (given or options.url) if begun else options.url or given
    if options.run and not begun:
        raise StreamError(f"streams.run={options.run}: the launcher names a new run; leave it out")
    name = options.run or f"{run_dir.name}-{secrets.token_hex(4)}"
    if url is None:
        server = RedisServer(run_dir / "redis", address)
        if server.missing and not config.plan:
            raise StreamError(server.missing)
        return StreamsLocation(options.model_copy(update={"run": name}), server.url, server)
    shown = without_secrets(url)
    if not is_loopback(address) and urlsplit(shown).hostname in ("localhost", "127.0.0.1", "::1"):
        raise StreamError(f"the Redis server {shown} is this node's alone: name it as all nodes reach it")
    Connection(url, "launcher").ping(within_s=0)
    if begun:
        _existing(url, name)
    return StreamsLocation(options.model_copy(update={"run": name, "url": shown}), url)
