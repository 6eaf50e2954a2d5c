"""What becomes of servers that end, are lost, drain or are condemned. No process: fates are made up."""

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
    Fate,
    Lost,
    Placed,
    Running,
    Slot,
    Waiting,
    Want,
)
from pipelinerl.launcher.supervising.ends import is_alive
from pipelinerl.launcher.supervising.server_job import Means
from pipelinerl.launcher.supervising.serving import Servers
from pipelinerl.streams.files import FileStreams


@dataclass
class Table:
    """An executor that is a table of fates; what it is asked for is written down."""

    fates: dict[str, Fate] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    is_full: bool = False
    ports: int = 80

    def ask(self, wants):
        if self.is_full:
            raise PlanError("nothing is free")
        for want in wants:
            self.asked.append(want.name)
            self.ports += 1
            self.fates[want.name] = Placed(Slot("node", "a", self.ports))

    def start(self, name: str, slot: Slot) -> tuple[str, str]:
        assert isinstance(self.fates[name], Placed)
        self.fates[name] = Running(slot)
        return f"http://a:{slot.port}", "engine"

    def end(self, names):
        assert all(is_alive(self.fates[name]) for name in names)
        self.ended += names

    def drop(self, names):
        for name in names:
            del self.fates[name]


class Scene:
    """Two servers that run, and the streams of their run."""

    def __init__(self, path: Path, restarts: int = 3):
        streams = FileStreams(path)
        self.table = Table()
        self.trainer = streams.writer("trainer_events")
        self._events = streams.reader("launcher_events")
        self._offset = 0
        self.now = time.monotonic()
        wants = [Want("server-0", "server-0", "server-0"), Want("server-1", "server-1", "server-1")]
        self.servers = Servers(
            wants,
            Means(
                self.table,
                self.table.start,
                streams.writer("launcher_events"),
                restarts,
                count=lambda: None,
                last_words=lambda name, status: f"see {name}.log",
            ),
            streams,
            longest_wait_s=600,
        )
        self.table.ask(wants)
        self.tend()
        self.table.asked.clear()

    def tend(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.servers.tend(dict(self.table.fates), self.now)

    def may_serve(self) -> bool:
        return self.servers.may_serve(self.table.fates, self.now)

    def published(self, *joinings: int) -> None:
        figures = {"version": 1, "seconds": 0.0, "bytes": 0, "paused_s": 0.0}
        self.trainer.append(WeightsPublished(run="r", servers=[], joinings=[*joinings], **figures))

    def slot(self, name: str) -> Slot:
        return self.table.fates[name].slot

    def dies(self, name: str, status: int = -9) -> None:
        self.table.fates[name] = Ended(self.slot(name), status)
        self.tend()

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
    scene.tend(after_s=0.9)
    assert scene.table.asked == []
    scene.tend(after_s=0.1)
    scene.tend()
    assert scene.table.asked == ["server-1"]
    assert scene.story() == [("server-1", "http://a:83")]


def test_each_has_a_budget_of_its_own_and_then_none_is_left(scene):
    scene.published(1, 2)
    for name in ("server-0", "server-1"):
        for _ in range(4):
            assert scene.may_serve()
            scene.published(scene.slot(name).port - 80)
            scene.tend()
            scene.dies(name)
            scene.tend(after_s=60)
            scene.tend()
    assert scene.table.asked == 3 * ["server-0"] + 3 * ["server-1"]
    assert not scene.may_serve()


def test_one_on_a_lost_node_left_at_once_and_waits_for_a_place(scene):
    scene.published(2)
    scene.tend()
    scene.table.fates["server-1"] = Lost(scene.slot("server-1"), "node b is gone")
    scene.tend()
    assert scene.story()[2:] == [("server-1", "http://a:82", "lost")]
    scene.dies("server-0", status=2)
    scene.tend(after_s=1)
    scene.table.fates["server-1"] = Waiting("{CPU: 1}")
    scene.tend(after_s=598)
    assert scene.may_serve()
    scene.tend(after_s=3)
    assert not scene.may_serve()


@pytest.mark.parametrize(("notice_s", "after_s"), [(20, 15), (1000, 30), (math.inf, 30)])
def test_one_that_drains_leaves_before_it_ends_at_no_cost(scene, notice_s, after_s):
    for _ in range(5):
        scene.said()
        scene.table.fates["server-1"] = Draining(scene.slot("server-1"), time.time() + notice_s)
        scene.tend()
        scene.tend(after_s=after_s - 1)
        assert [left[2] for left in scene.story()] == ["draining"]
        assert scene.table.ended == []
        scene.tend(after_s=2)
        scene.tend(after_s=2)
        assert scene.table.ended == ["server-1"]
        scene.table.ended.clear()
        scene.dies("server-1")
        scene.tend(after_s=60)
        scene.tend()
    assert scene.table.asked == 5 * ["server-1"]


@pytest.mark.parametrize("replaceable", [False, True])
def test_one_that_is_condemned_is_ended_and_replaced_only_where_that_may_help(scene, replaceable):
    scene.published(1)
    scene.trainer.append(condemned(1, replaceable))
    scene.tend()
    assert scene.table.ended == ["server-0"]
    assert scene.story()[2:] == [("server-0", "http://a:81", "condemned")]
    scene.dies("server-0", status=143)
    scene.tend(after_s=1)
    scene.tend()
    assert scene.table.asked == (["server-0"] if replaceable else [])
    scene.tend()
    assert scene.table.ended == ["server-0"]  # the new one is not


def condemned(joining: int, replaceable: bool) -> ServerCondemned:
    return ServerCondemned(joining=joining, url="http://a:81", why="refuses", replaceable=replaceable)


def test_what_was_said_of_the_one_before_does_not_end_the_one_at_its_url(scene):
    """As with a fixed port: the trainer wrote it before it had read of the second."""
    scene.published(1)
    scene.dies("server-0", status=1)
    scene.table.ports = 80
    scene.tend(after_s=2)
    scene.tend()
    assert scene.story()[-1] == ("server-0", "http://a:81")
    scene.trainer.append(condemned(1, replaceable=False))
    scene.tend()
    assert scene.table.ended == []
    scene.trainer.append(condemned(3, replaceable=False))
    scene.tend()
    assert scene.table.ended == ["server-0"]


def test_a_place_that_cannot_be_had_is_asked_for_again_later(scene):
    scene.published(1)
    scene.dies("server-0")
    scene.table.is_full = True
    for _ in range(100):
        scene.tend(after_s=5)
    assert scene.table.asked == [] and scene.may_serve()
    scene.dies("server-1", status=2)
    assert scene.may_serve()
    scene.tend(after_s=200)
    assert not scene.may_serve()
    scene.table.is_full = False
    scene.tend(after_s=5)
    assert scene.table.asked == ["server-0"]


def want(index: int) -> Want:
    name = f"server-{index}"
    return Want(name, name, name)


def scale(scene: Scene, number: int) -> None:
    scene.servers.scale([want(index) for index in range(number)], dict(scene.table.fates), scene.now)


def test_more_servers_are_started_and_those_beyond_the_number_finish_first(scene):
    scale(scene, 3)
    scene.tend()
    assert scene.table.asked == ["server-2"]
    scale(scene, 1)
    scene.tend(after_s=29)
    began, *left = scene.story()[2:]
    assert began == ("server-2", "http://a:83")
    assert {*left} == {("server-1", "http://a:82", "asked"), ("server-2", "http://a:83", "asked")}
    assert scene.table.ended == []
    scene.tend(after_s=2)
    assert scene.table.ended == ["server-1", "server-2"]
    scene.dies("server-1", status=143)
    scene.dies("server-2", status=143)
    scene.tend(after_s=600)
    assert scene.table.asked == ["server-2"]  # none was started again
    scale(scene, 2)
    assert scene.table.asked == ["server-2", "server-1"]


def test_a_replacement_that_loses_its_place_is_not_excused_by_the_one_before(scene, capsys):
    scene.published(1, 2)
    scene.table.fates["server-1"] = Draining(scene.slot("server-1"), time.time() + 20)
    scene.tend()
    scene.dies("server-1", status=143)
    capsys.readouterr()
    for _ in range(100):
        if "server-1" in scene.table.fates:
            scene.table.fates["server-1"] = Lost(None, "no way to the launcher")
        scene.tend(after_s=1)
    assert scene.table.asked == 2 * ["server-1"]
    assert capsys.readouterr().err.count("server-1 is lost: no way to the launcher") == 2


def test_a_server_that_does_not_serve_is_let_go_before_one_that_does(scene):
    scene.dies("server-0", status=2)
    scale(scene, 1)
    scene.tend()
    assert [event[0] for event in scene.story()[2:]] == ["server-0"]  # which had left before


@pytest.mark.parametrize("restarts", [0, 3])
def test_one_that_finishes_and_is_wanted_again_is_replaced_at_once(tmp_path, restarts):
    scene = Scene(tmp_path, restarts)
    scale(scene, 1)
    scene.tend(after_s=1)
    scale(scene, 2)
    scene.tend()
    assert scene.table.ended == ["server-1"]
    scene.dies("server-1", status=143)
    scene.tend(after_s=1)
    assert scene.table.asked == ["server-1"]


def test_a_place_that_was_just_given_is_given_back(scene):
    scale(scene, 3)
    scale(scene, 2)
    scene.tend()
    assert "server-2" not in scene.table.fates
