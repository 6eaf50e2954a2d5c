"""What becomes of servers that end, are lost, drain or are condemned. No process: states are made up."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.records import Record, ServerCondemned, ServerJoined, ServerLeft, WeightsPublished
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import (
    Draining,
    Ended,
    JobState,
    Lost,
    Placed,
    Placement,
    ResourceRequest,
    Running,
    Waiting,
)
from pipelinerl.launcher.supervising.failures import is_alive
from pipelinerl.launcher.supervising.servers import ServerJobContext, Servers
from pipelinerl.streams.files import FileStreams


@dataclass
class Table:
    """An executor that is a table of states; what is requested of it is written down."""

    states: dict[str, JobState] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    is_full: bool = False
    ports: int = 80

    def request(self, requests):
        if self.is_full:
            raise PlanError("nothing is free")
        for request in requests:
            self.asked.append(request.name)
            self.ports += 1
            self.states[request.name] = Placed(Placement("node", "a", self.ports))

    def start(self, name: str, placement: Placement) -> tuple[str, str]:
        assert isinstance(self.states[name], Placed)
        self.states[name] = Running(placement)
        return f"http://a:{placement.port}", "engine"

    def end(self, names):
        assert all(is_alive(self.states[name]) for name in names)
        self.ended += names

    def release(self, names):
        for name in names:
            del self.states[name]


class Scene:
    """Two servers that run, and the streams of their run."""

    def __init__(self, path: Path, restarts: int = 3):
        streams = FileStreams(path)
        self.table = Table()
        self.trainer = streams.writer("trainer_events")
        self._events = streams.reader("launcher_events")
        self._offset = 0
        self.now = time.monotonic()
        requests = [ResourceRequest(name, name, name) for name in ("server-0", "server-1")]
        self.servers = Servers(
            requests,
            ServerJobContext(
                self.table,
                self.table.start,
                streams.writer("launcher_events"),
                restarts,
                count_restart=lambda: None,
                last_words=lambda name, status: f"see {name}.log",
            ),
            streams,
            longest_wait_s=600,
        )
        self.table.request(requests)
        self.update()
        self.table.asked.clear()

    def update(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.servers.update(dict(self.table.states), self.now)

    def can_serve(self) -> bool:
        return self.servers.can_serve(self.table.states, self.now)

    def published(self, *joinings: int) -> None:
        figures = {"version": 1, "seconds": 0.0, "bytes": 0, "paused_s": 0.0}
        self.trainer.append(WeightsPublished(run="r", servers=[], joinings=[*joinings], **figures))

    def placement(self, name: str) -> Placement:
        return self.table.states[name].placement

    def dies(self, name: str, status: int = -9) -> None:
        self.table.states[name] = Ended(self.placement(name), status)
        self.update()

    def said(self) -> list[Record]:
        found = []
        for entry in self._events.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            found.append(entry.record)
        return found

    def story(self) -> list[tuple[str, ...]]:
        """What was said, in brief: who joined where, who left and why."""
        return [
            (event.name, event.url) if isinstance(event, ServerJoined) else (event.name, event.url, event.why)
            for event in self.said()
            if isinstance(event, ServerJoined | ServerLeft)
        ]


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """Stops the clock by which a node says when it goes."""
    monkeypatch.setattr(time, "time", lambda: 1e9)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


BEGAN = [("server-0", "http://a:81"), ("server-1", "http://a:82")]


def test_one_that_dies_is_replaced_at_another_address(scene):
    scene.published(1, 2)
    scene.dies("server-1")
    assert scene.story() == [*BEGAN, ("server-1", "http://a:82", "ended")]
    scene.update(after_s=0.9)
    assert scene.table.asked == []
    scene.update(after_s=0.1)
    scene.update()
    assert scene.table.asked == ["server-1"]
    assert scene.story() == [("server-1", "http://a:83")]


def test_each_has_a_budget_of_its_own_and_then_none_is_left(scene):
    scene.published(1, 2)
    for name in ("server-0", "server-1"):
        for _ in range(4):
            assert scene.can_serve()
            scene.published(scene.placement(name).port - 80)
            scene.update()
            scene.dies(name)
            scene.update(after_s=60)
            scene.update()
    assert scene.table.asked == 3 * ["server-0"] + 3 * ["server-1"]
    assert not scene.can_serve()


def test_one_on_a_lost_node_left_at_once_and_waits_for_a_place(scene):
    scene.published(2)
    scene.update()
    scene.table.states["server-1"] = Lost(scene.placement("server-1"), "node b is gone")
    scene.update()
    assert scene.story()[2:] == [("server-1", "http://a:82", "lost")]
    scene.dies("server-0", status=2)
    scene.update(after_s=1)
    scene.table.states["server-1"] = Waiting("{CPU: 1}")
    scene.update(after_s=598)
    assert scene.can_serve()
    scene.update(after_s=3)
    assert not scene.can_serve()


@pytest.mark.parametrize(("notice_s", "after_s"), [(20, 15), (1000, 30), (math.inf, 30)])
def test_one_that_drains_leaves_before_it_ends_at_no_cost(scene, notice_s, after_s):
    for _ in range(5):
        scene.said()
        scene.table.states["server-1"] = Draining(scene.placement("server-1"), time.time() + notice_s)
        scene.update()
        scene.update(after_s=after_s - 1)
        assert [left[2] for left in scene.story()] == ["draining"]
        assert scene.table.ended == []
        scene.update(after_s=2)
        scene.update(after_s=2)
        assert scene.table.ended == ["server-1"]
        scene.table.ended.clear()
        scene.dies("server-1")
        scene.update(after_s=60)
        scene.update()
    assert scene.table.asked == 5 * ["server-1"]


@pytest.mark.parametrize("replaceable", [False, True])
def test_one_that_is_condemned_is_ended_and_replaced_only_where_that_may_help(scene, replaceable):
    scene.published(1)
    scene.trainer.append(condemned(1, replaceable))
    scene.update()
    assert scene.table.ended == ["server-0"]
    assert scene.story()[2:] == [("server-0", "http://a:81", "condemned")]
    scene.dies("server-0", status=143)
    scene.update(after_s=1)
    scene.update()
    assert scene.table.asked == (["server-0"] if replaceable else [])
    scene.update()
    assert scene.table.ended == ["server-0"]  # the new one is not


def condemned(joining: int, replaceable: bool) -> ServerCondemned:
    return ServerCondemned(joining=joining, url="http://a:81", why="refuses", replaceable=replaceable)


def test_what_was_said_of_the_one_before_does_not_end_the_one_at_its_url(scene):
    """As with a fixed port: the trainer wrote it before it had read of the second."""
    scene.published(1)
    scene.dies("server-0", status=1)
    scene.table.ports = 80
    scene.update(after_s=2)
    scene.update()
    assert scene.story()[-1] == ("server-0", "http://a:81")
    scene.trainer.append(condemned(1, replaceable=False))
    scene.update()
    assert scene.table.ended == []
    scene.trainer.append(condemned(3, replaceable=False))
    scene.update()
    assert scene.table.ended == ["server-0"]


def test_a_place_that_cannot_be_had_is_asked_for_again_later(scene):
    scene.published(1)
    scene.dies("server-0")
    scene.table.is_full = True
    for _ in range(100):
        scene.update(after_s=5)
    assert scene.table.asked == [] and scene.can_serve()
    scene.dies("server-1", status=2)
    assert scene.can_serve()
    scene.update(after_s=200)
    assert not scene.can_serve()
    scene.table.is_full = False
    scene.update(after_s=5)
    assert scene.table.asked == ["server-0"]


def request(index: int) -> ResourceRequest:
    name = f"server-{index}"
    return ResourceRequest(name, name, name)


def scale(scene: Scene, number: int) -> None:
    scene.servers.scale([request(index) for index in range(number)], dict(scene.table.states), scene.now)


def test_more_servers_are_started_and_those_beyond_the_number_finish_first(scene):
    scale(scene, 3)
    scene.update()
    assert scene.table.asked == ["server-2"]
    scale(scene, 1)
    scene.update(after_s=29)
    began, *left = scene.story()[2:]
    assert began == ("server-2", "http://a:83")
    assert {*left} == {("server-1", "http://a:82", "asked"), ("server-2", "http://a:83", "asked")}
    assert scene.table.ended == []
    scene.update(after_s=2)
    assert scene.table.ended == ["server-1", "server-2"]
    scene.dies("server-1", status=143)
    scene.dies("server-2", status=143)
    scene.update(after_s=600)
    assert scene.table.asked == ["server-2"]  # none was started again
    scale(scene, 2)
    assert scene.table.asked == ["server-2", "server-1"]


def test_a_replacement_that_loses_its_place_is_not_excused_by_the_one_before(scene, capsys):
    scene.published(1, 2)
    scene.table.states["server-1"] = Draining(scene.placement("server-1"), time.time() + 20)
    scene.update()
    scene.dies("server-1", status=143)
    capsys.readouterr()
    for _ in range(100):
        if "server-1" in scene.table.states:
            scene.table.states["server-1"] = Lost(None, "no way to the launcher")
        scene.update(after_s=1)
    assert scene.table.asked == 2 * ["server-1"]
    assert capsys.readouterr().err.count("server-1 is lost: no way to the launcher") == 2


def test_a_server_that_does_not_serve_is_let_go_before_one_that_does(scene):
    scene.dies("server-0", status=2)
    scale(scene, 1)
    scene.update()
    assert [event[0] for event in scene.story()[2:]] == ["server-0"]  # which had left before


@pytest.mark.parametrize("restarts", [0, 3])
def test_one_that_finishes_and_is_wanted_again_is_replaced_at_once(tmp_path, restarts):
    scene = Scene(tmp_path, restarts)
    scale(scene, 1)
    scene.update(after_s=1)
    scale(scene, 2)
    scene.update()
    assert scene.table.ended == ["server-1"]
    scene.dies("server-1", status=143)
    scene.update(after_s=1)
    assert scene.table.asked == ["server-1"]


def test_a_place_that_was_just_given_is_given_back(scene):
    scale(scene, 3)
    scale(scene, 2)
    scene.update()
    assert "server-2" not in scene.table.states
