"""Opens the streams of a run, for its own processes and for other commands.

The saved configuration holds their location, without a password. For a run's own Redis server, the launcher
passes the URL to its processes in the environment. For a user's server with a password, the user sets the URL
in the environment.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import TypeAdapter

from contracts.support.addresses import LOOPBACK
from pipelinerl.config import FileStreamsConfig, ResolvedRun, ResolvedStreams, RunConfig, saved_config
from pipelinerl.process import REDIS_VARIABLE
from pipelinerl.streams import Streams
from pipelinerl.streams.base import do_nothing
from pipelinerl.streams.files import FileStreams

if TYPE_CHECKING:
    from pipelinerl.streams.redis_server import RedisServer


def open_streams(
    config: ResolvedRun,
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
    from pipelinerl.streams.redis import RedisStreams

    return RedisStreams(url or os.environ[REDIS_VARIABLE], options.run, options.keep_bytes, on_wait)


@contextmanager
def recorded_streams(run_dir: Path) -> Iterator[Streams]:
    """Opens the streams of a run for reading, whether the run is alive or not.

    If the run has its own Redis server and it is not running, it is started for the block.
    """
    options = _saved_options(run_dir)
    if options.backend == "files":
        yield FileStreams(run_dir / "streams")
    else:
        from pipelinerl.streams.redis_of_run import recorded

        with recorded(options, run_dir) as streams:
            yield streams


def _saved_options(run_dir: Path) -> ResolvedStreams:
    saved = saved_config(run_dir).get("streams") if (run_dir / "config.yaml").exists() else None
    return TypeAdapter(ResolvedStreams).validate_python(saved) if saved else FileStreamsConfig()


class StreamsLocation(NamedTuple):
    """The location of a run's streams, for its launcher."""

    options: ResolvedStreams  # the options to save
    url: str | None = None  # URL of the Redis server
    server: "RedisServer | None" = None  # the run's own server, which the launcher must enter


def resolve_streams(config: RunConfig, run_dir: Path, address: str = LOOPBACK) -> StreamsLocation:
    """Returns the location of a run's streams. Starts nothing. Raises StreamError if there is no server.

    `address`: the address at which the run's own server will listen.
    """
    begun = config.resume is not False
    options = _saved_options(run_dir) if begun else config.streams
    if options.backend == "files":
        return StreamsLocation(options)
    from pipelinerl.streams.redis_of_run import resolve  # brings the client of Redis, which is large

    return StreamsLocation(*resolve(options, run_dir, address, is_planned=config.plan))
