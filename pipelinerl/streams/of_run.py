"""Where the streams of a run are kept: the interface of backends, files as the default, and their opening.

`streams._target_` names the class of a backend, and the other keys of `streams` are its options. The
launcher, each process of the run, and each command that reads one make an object of it.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from pipelinerl.components import named_class, typed_options
from pipelinerl.config import Component, Int, ResolvedRun, RunConfig, Section, saved_streams
from pipelinerl.streams.base import Streams, do_nothing
from pipelinerl.streams.files import FileStreams


class StreamsServer(AbstractContextManager):
    """A server of a run's own. While its context lasts, it runs, and is started again if it ends."""

    name: str
    command: Sequence[str]
    missing: str | None = None  # how to install what the machine lacks
    failure: Exception | None = None  # why it is not started again

    @abc.abstractmethod
    def is_away(self) -> bool:
        """Returns whether the streams have to wait for it. Raises `failure`."""

    @abc.abstractmethod
    def restarts(self) -> Iterator[str]:
        """Yields why it was started again, each time once."""


class StreamsBackend(abc.ABC):
    """A place for the streams of a run. All methods but `open` have a default, for streams without a server.

    run: the run's name there, if `locate` has given it one. Raises PlanError for keys that `Options` lacks.
    """

    Options: ClassVar[type[Section]] = Section
    spans_nodes: ClassVar[bool] = False  # whether processes on other machines reach the streams
    environment: Mapping[str, str] = {}  # what `locate` found that processes of the run need
    server: StreamsServer | None = None  # what `locate` found that the launcher must run
    place: str | None = None  # where the streams are, for `plan=true`; None shows the class

    def __init__(self, section: Component, run_dir: Path):
        self.target = section.target
        self.options = typed_options("streams", section, self.Options)
        self.run: str | None = getattr(section, "run", None)
        self.run_dir = run_dir

    @property
    def section(self) -> dict[str, Any]:
        """The section of the configuration that is saved, with what `locate` has found."""
        return {"_target_": self.target, "run": self.run} | self.options.model_dump()

    @abc.abstractmethod
    def open(self, on_wait: Callable[[], object] = do_nothing) -> Streams:
        """Opens the streams as processes of the run do. `on_wait`: called every few seconds of a wait."""

    def recorded(self) -> AbstractContextManager[Streams]:
        """Opens the streams for reading, whether the run is alive or not."""
        return nullcontext(self.open())

    def locate(self, config: RunConfig, address: str) -> None:  # noqa: B027
        """Finds what a launch needs, without a start. A server listens at `address`. Raises StreamError."""


class Files(StreamsBackend):
    """Segments in the run's directory, for the processes of one machine (`streams=files`)."""

    class Options(Section):
        segment_bytes: Int = Field(64 << 20, ge=4096, description="Size at which a new segment file begins.")
        keep_bytes: Int = Field(16 << 30, ge=4096, description="Bytes kept of each stream; all events stay.")

    options: Options
    place = "files in the run directory"

    def open(self, on_wait: Callable[[], object] = do_nothing) -> FileStreams:
        directory = self.run_dir / "streams"
        return FileStreams(directory, self.options.segment_bytes, self.options.keep_bytes, on_wait)


def open_streams(config: ResolvedRun, run_dir: Path, on_wait: Callable[[], object] = do_nothing) -> Streams:
    return backend_of(config.streams, run_dir).open(on_wait)


def recorded_streams(run_dir: Path) -> AbstractContextManager[Streams]:
    return backend_of(saved_streams(run_dir), run_dir).recorded()


def locate_streams(config: RunConfig, run_dir: Path, address: str) -> StreamsBackend:
    """Returns the backend with what a launch needs. Raises PlanError or StreamError."""
    backend = backend_of(config.streams if config.resume is False else saved_streams(run_dir), run_dir)
    backend.locate(config, address)
    return backend


def backend_of(section: Component, run_dir: Path) -> StreamsBackend:
    """Raises PlanError for a class that is no backend, or an option that it has not."""
    return named_class("streams", section, StreamsBackend)(section, run_dir)
