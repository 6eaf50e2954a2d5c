"""Who is a server is what the launcher says; a server that comes back is another one."""

from contracts.records import ServerJoined, ServerLeft
from pipelinerl.clients.server_registry import ServerRegistry
from pipelinerl.streams.events import FRESH_RUN
from tests.pipeline.launched import Launcher


def joined(name: str, url: str) -> ServerJoined:
    return ServerJoined(name=name, url=url, node="n", engine="e")


def left(name: str, url: str, why: str = "lost") -> ServerLeft:
    return ServerLeft(name=name, url=url, why=why)


def urls(registry: ServerRegistry) -> list[str]:
    return [joining.url for joining in registry.present]


def test_servers_join_and_leave():
    registry = ServerRegistry()
    assert registry.observe(joined("0", "a")) == registry.observe(joined("1", "b")) == []
    (leaving,) = registry.observe(left("0", "a"))
    assert (leaving.joining.url, leaving.drains) == ("a", False)
    assert urls(registry) == ["b"] and [j.url for j in registry.latest.values()] == ["a", "b"]
    assert registry.observe(left("0", "a")) == []
    registry.observe(joined("0", "c"))
    assert urls(registry) == ["c", "b"]


def test_a_server_that_comes_back_at_its_url_is_another_one():
    registry = ServerRegistry()
    registry.observe(joined("0", "a"))
    (before,) = registry.present
    registry.observe(left("0", "a"))
    registry.observe(joined("0", "a"))
    (after,) = registry.present
    assert after != before and registry.observe(left("1", "a")) == []


def test_a_joining_replaces_what_had_its_name_or_its_url():
    registry = ServerRegistry()
    registry.observe(joined("0", "a"))
    assert len(registry.observe(joined("0", "b"))) == 1
    assert len(registry.observe(joined("1", "b"))) == 1
    assert urls(registry) == ["b"]


def test_a_server_that_drains_may_end_its_requests():
    registry = ServerRegistry()
    registry.observe(joined("0", "a"))
    assert registry.observe(left("0", "a", "draining"))[0].drains


def test_a_new_launch_begins_without_servers():
    registry = ServerRegistry()
    registry.observe(joined("0", "a"))
    assert len(registry.observe(FRESH_RUN)) == 1
    assert registry.present == [] and registry.latest == {}


def test_what_a_launcher_writes_is_read_when_it_is_asked_for():
    launcher = Launcher("a", "b")
    servers = launcher.servers()
    assert servers.refresh() == [] and [j.url for j in servers.present] == ["a", "b"]
    changed_at = servers.changed_at
    assert servers.refresh() == [] and servers.changed_at == changed_at
    launcher.leave("a")
    assert [j.url for j in servers.present] == ["a", "b"]
    assert [leaving.joining.url for leaving in servers.refresh()] == ["a"]
    assert [j.url for j in servers.present] == ["b"] and servers.changed_at > changed_at
