"""Opens the streams of a run by the backend in its configuration. Files are the default backend.

`streams._target_` is the path of a `StreamsBackend`, and the other keys of `streams` are its options.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from pipelinerl.components import named_class, typed_options
from pipelinerl.config import Component, Int, ResolvedRun, RunConfig, Section, saved_streams
from pipelinerl.errors import PlanError
from pipelinerl.errors.part_faults import raised_by_users
from pipelinerl.streams.base import Streams, do_nothing
from pipelinerl.streams.files import FileStreams


class StreamsServer(AbstractContextManager):
    """A context in which the launcher runs a server of the backend, and restarts it if it ends.

    missing: how to install the server's program, if this machine lacks it.
    failure: why the server is not restarted any more, or None.
    """

    name: str
    command: Sequence[str]
    missing: str | None = None
    failure: Exception | None = None

    @abc.abstractmethod
    def is_away(self) -> bool:
        """Returns True while the server is not available. Raises `failure`."""

    @abc.abstractmethod
    def restarts(self) -> Iterator[str]:
        """Yields the reason of each restart once."""


class StreamsBackend(abc.ABC):
    """Base class of stream backends. All methods but `open` have defaults, for streams without a server.

    run: the run's name in storage that runs share. The constructor raises PlanError for unknown options.
    """

    Options: ClassVar[type[Section]] = Section
    spans_nodes: ClassVar[bool] = False  # True if processes on other machines can open the streams
    environment: Mapping[str, str] = {}  # variables for the run's processes; set by `locate`
    server: StreamsServer | None = None  # server for the launcher to run; set by `locate`
    place: str | None = None  # storage, as `plan=true` prints it; None prints the class

    def __init__(self, section: Component, run_dir: Path):
        self.target = section.target
        self.options = typed_options("streams", section, self.Options)
        self.run: str | None = getattr(section, "run", None)
        self.run_dir = run_dir

    @property
    def section(self) -> dict[str, Any]:
        """The section `streams` of the saved configuration, including the results of `locate`."""
        return {"_target_": self.target, "run": self.run} | self.options.model_dump()

    @abc.abstractmethod
    def open(self, on_wait: Callable[[], object] = do_nothing) -> Streams:
        """Opens the streams for a process of the run. on_wait: called every few seconds of a wait."""

    def recorded(self) -> AbstractContextManager[Streams]:
        """Opens the streams for reading, also after the run has ended."""
        return nullcontext(self.open())

    def locate(self, config: RunConfig, address: str) -> None:  # noqa: B027
        """Sets `run`, `environment` and `server` before the start. Raises StreamError.

        address: the address at which a server is to listen.
        """


class Files(StreamsBackend):
    """Segments in the run's directory, for the processes of one machine (`streams=files`)."""

    class Options(Section):
        segment_bytes: Int = Field(64 << 20, ge=4096, description="Size of a segment file.")
        keep_bytes: Int = Field(16 << 30, ge=4096, description="Bytes to keep per stream, except events.")

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
    """Returns the backend after its `locate`, for the launcher. Raises PlanError or StreamError."""
    backend = backend_of(config.streams if config.resume is False else saved_streams(run_dir), run_dir)
    backend.locate(config, address)
    return backend


def backend_of(section: Component, run_dir: Path) -> StreamsBackend:
    """Returns the backend of a section. Raises PlanError if its class or options are invalid."""
    named = named_class("streams", section, StreamsBackend)
    try:
        return named(section, run_dir)
    except TypeError as error:
        if raised_by_users(error):
            raise
        raise PlanError(
            f"streams._target_={section.target}: {error}; a backend is made of (section, run_dir)"
        ) from error
