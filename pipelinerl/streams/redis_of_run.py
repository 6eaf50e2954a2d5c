"""Where the streams of a run with `streams=redis` are. Called by `of_run`."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from contracts.support.addresses import is_loopback
from pipelinerl.config import RedisStreamsConfig, ResolvedRedis
from pipelinerl.process import REDIS_VARIABLE
from pipelinerl.streams import StreamError
from pipelinerl.streams.redis import RedisStreams
from pipelinerl.streams.redis_connection import Connection, without_secrets
from pipelinerl.streams.redis_server import RedisServer, served


@contextmanager
def recorded(options: ResolvedRedis, run_dir: Path) -> Iterator[RedisStreams]:
    """Opens the recorded streams of a run, whose own server is started for the block if it does not run."""
    if options.url:
        yield _existing(os.environ.get(REDIS_VARIABLE, options.url), options.run)
        return
    with served(run_dir / "redis") as url:
        yield RedisStreams(url, options.run)


def _existing(url: str, name: str) -> RedisStreams:
    """Returns the streams of a run on the user's server. Raises StreamError if there are none."""
    streams = RedisStreams(url, name)
    if not streams.names():
        raise StreamError(
            f"the Redis server {without_secrets(url)} has no streams of {name}; "
            f"is {REDIS_VARIABLE} another's?"
        )
    return streams


def resolve(
    options: RedisStreamsConfig, run_dir: Path, address: str, is_planned: bool
) -> tuple[ResolvedRedis, str, RedisServer | None]:
    """Returns the options to save, the URL of the server, and the run's own server if it has one.

    options: those saved, if the run has begun.
    """
    begun = isinstance(options, ResolvedRedis)
    given = os.environ.get(REDIS_VARIABLE)
    # The saved URL has no password, and there is none for the run's own server.
    url = options.url and (given or options.url) if begun else options.url or given
    name = options.run if begun else f"{run_dir.name}-{secrets.token_hex(4)}"
    found = ResolvedRedis(**options.model_dump() | {"run": name})
    if url is None:
        server = RedisServer(run_dir / "redis", address)
        if server.missing and not is_planned:
            raise StreamError(server.missing)
        return found, server.url, server
    shown = without_secrets(url)
    if not is_loopback(address) and urlsplit(shown).hostname in ("localhost", "127.0.0.1", "::1"):
        raise StreamError(f"the Redis server {shown} is this node's alone: name it as all nodes reach it")
    Connection(url, "launcher").ping(within_s=0)
    if begun:
        _existing(url, name)
    return found.model_copy(update={"url": shown}), url, None
