"""The actor beside a server that is worth more requests than it begins with."""

import asyncio
from pathlib import Path

import pytest

from contracts.records import ServerJoined, WeightsPublished
from pipelinerl.actor import Actor
from pipelinerl.clients import adaptive_limit, load_watch
from pipelinerl.clients.http_session import open_session
from pipelinerl.config import CONCURRENCY_AT_FIRST
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.streams.files import FileStreams
from tests.clients.fake_servers import FakeServer, served
from tests.clients.test_load_watch import TEXT
from tests.pipeline.runs import MINIATURE

NEVER_S = 1000.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(load_watch, "EVERY_S", 0.05)
    monkeypatch.setattr(adaptive_limit, "WINDOW_S", 0.1)
    monkeypatch.setattr(adaptive_limit, "SETTLES_S", 0.1)


class FasterWithMore(FakeServer):
    """A server that answers nothing, and samples more tokens with each look."""

    def __init__(self):
        super().__init__(delay_s=NEVER_S)
        self.sampled = 0.0
        self.metrics = self.look

    def look(self) -> str:
        running = self.in_flight
        self.sampled += running**2
        return TEXT.format(running=running, waiting=0, sampled=self.sampled)


def test_a_limit_that_is_raised_starts_rollouts_and_moves_the_bounds_at_once(tmp_path: Path):
    settings = ["inference.concurrency=null", "eval.problems=1", "eval.concurrency=1", "max_lag=null"]
    config = compose_config([*MINIATURE, *settings])

    async def scenario(server: FakeServer) -> tuple[int, int]:
        async with served(server), open_session(token=None) as session:
            publish(FileStreams(tmp_path / "streams"), server.url)
            actor = Actor(config, tmp_path, session)
            async with actor.adapting():
                running = asyncio.create_task(actor.run())
                while server.in_flight <= 1.5 * CONCURRENCY_AT_FIRST:
                    await asyncio.sleep(0.05)
                running.cancel()
                await asyncio.wait({running})
            return actor._admission.slots, actor.pools[0].capacity

    bound, capacity = asyncio.run(scenario(FasterWithMore()))
    assert bound >= 1.5 * CONCURRENCY_AT_FIRST and capacity >= bound


def publish(streams: FileStreams, url: str) -> None:
    """Writes what the launcher and the trainer say when the first version is live on a server."""
    joined = ServerJoined(number=1, name="server-0", url=url, node="here", engine="fake")
    streams.writer("launcher_events").append(joined)
    figures = {"seconds": 0.0, "bytes": 0, "paused_s": 0.0}
    published = WeightsPublished(run="r", version=0, servers=[url], joinings=[1], **figures)
    streams.writer("trainer_events").append(published)
