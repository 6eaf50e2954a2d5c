"""Opening the streams of a run: from its own processes, and from outside.

The saved configuration says where they are, without a password. The launcher passes the URL of a run's own
Redis server to the processes that it starts, in the environment. The user sets the URL of another server
there, if it is more than an address.
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

    `url` is the Redis server, by default the one that the environment names. `on_wait` is called every few
    seconds where an append waits for room on a disk, or any call for the server.
    """
    options = config.streams
    if options.backend == "files":
        return FileStreams(run_dir / "streams", options.segment_bytes, options.keep_bytes, on_wait)
    return RedisStreams(url or os.environ[REDIS_VARIABLE], options.run, options.keep_bytes, on_wait)


@contextmanager
def recorded_streams(run_dir: Path) -> Iterator[Streams]:
    """Opens the streams of a run for reading, whether the run is alive or not.

    The run's own Redis server is started for as long as the block lasts, unless it is running.
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
    """The streams of a run that has begun, on a server of the user's."""
    streams = RedisStreams(url, name)
    if not streams.names():
        raise StreamError(
            f"the Redis server {without_secrets(url)} has no streams of {name}; "
            f"is {REDIS_VARIABLE} another's?"
        )
    return streams


class StreamsLocation(NamedTuple):
    """Where the streams of a run are, for its launcher."""

    options: StreamsConfig  # as they are saved
    url: str | None = None  # of the Redis server
    server: RedisServer | None = None  # the run's own: to be entered


def resolve_streams(config: RunConfig, run_dir: Path, address: str = LOOPBACK) -> StreamsLocation:
    """Returns where the streams of a run will be; starts nothing. Raises StreamError if there is no server.

    `address`: where a server of the run's own will listen.
    """
    options = config.streams
    if options.backend == "files":
        return StreamsLocation(options)
    begun = config.resume is not False
    given = os.environ.get(REDIS_VARIABLE)
    # What is saved is an address alone, and none where the server is the run's own.
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
