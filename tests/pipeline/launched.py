"""The launcher's part in tests of processes that read `launcher_events`."""

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from contracts.records import ServerCondemned, ServerJoined, ServerLeft
from contracts.support.addresses import LOOPBACK
from contracts.weights import WeightManifest
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training.membership import candidates
from pipelinerl.training.publishing.base import PublisherContext
from tests.clock import Clock

DIRECTORIES: list[tempfile.TemporaryDirectory] = []  # they exist as long as the tests run


class Launcher:
    """Writes `launcher_events` into its own streams, which begin with these servers."""

    def __init__(self, *urls: str):
        DIRECTORIES.append(tempfile.TemporaryDirectory())
        self.streams = FileStreams(DIRECTORIES[-1].name)
        self._events = self.streams.writer("launcher_events")
        self._names: dict[str, str] = {}  # by URL
        self._joined = 0
        self.condemned: list[ServerCondemned] = []  # records that a publisher has written
        self.join(*urls)

    def join(self, *urls: str, name: str | None = None) -> None:
        for url in urls:
            self._names[url] = name or f"server-{len(self._names)}"
            self._joined += 1
            said = {"number": self._joined, "name": self._names[url], "url": url}
            self._events.append(ServerJoined(**said, node="here", engine="scripted"))

    def leave(self, url: str, why: str = "lost") -> None:
        self._events.append(ServerLeft(name=self._names[url], url=url, why=why))

    def servers(self) -> LaunchedServers:
        """Returns the servers as a process of the run reads them."""
        return LaunchedServers(self.streams)


def context_of(launcher: Launcher, manifest: WeightManifest, **changes: object) -> PublisherContext:
    """Returns what a publisher to these servers is given."""
    given = {
        "run_dir": Path(DIRECTORIES[-1].name),
        "launched": launcher.servers(),
        "token": None,
        "record": launcher.condemned.append,
        "needs": {},
        "address": LOOPBACK,
        "buffers": dict,
    }
    return PublisherContext(manifest=manifest, **given | changes)


def moved_clock(monkeypatch: pytest.MonkeyPatch, at_sleeps: Iterable[Callable[[], object]] = ()) -> Clock:
    """Returns a clock for the waits of a publisher for servers.

    at_sleeps: what is done at its first sleep, at its second, and so on.
    """
    actions = iter(at_sleeps)
    clock = Clock(lambda: next(actions, lambda: None)())
    clock.now = time.monotonic()  # of the launcher's news
    monkeypatch.setattr(candidates, "time", clock)
    return clock
