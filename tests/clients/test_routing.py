"""Which server is next, as a matter of state alone."""

from pipelinerl.clients.routing import LONGEST_REST_S, SHORTEST_REST_S, Routing, Server


def routing(*urls: str, limit: int = 8) -> Routing:
    routing = Routing(limit)
    routing.set_servers(urls)
    return routing


def chosen(routing: Routing, now: float = 0.0, avoid: str | None = None) -> str | None:
    server = routing.choose(now, avoid)
    return server.url if server else None


def taken(routing: Routing, now: float) -> list[Server]:
    """What the servers take at that time, which stays in flight."""
    taken = []
    while server := routing.choose(now):
        server.in_flight += 1
        taken.append(server)
    return taken


def test_the_least_busy_is_next():
    servers = routing("a", "b", limit=2)
    servers.find("a").in_flight = 1
    assert chosen(servers) == "b"
    assert [s.url for s in taken(servers, 0)] == ["b", "a", "b"]


def test_rests_double_up_to_the_longest_and_a_thousand_failures_are_no_problem():
    servers = routing("a")
    now, rests = 0.0, []
    for _ in range(1100):
        servers.failed(servers.find("a"), now)
        rests.append(servers.next_end_of_a_rest(now) - now)
        assert chosen(servers, now) is None
        now = servers.find("a").rests_until
        assert chosen(servers, now) == "a"
    assert [round(rest / SHORTEST_REST_S) for rest in rests[:4]] == [1, 2, 4, 8]
    assert round(rests[-1], 3) == LONGEST_REST_S


def test_what_fails_at_once_is_one_failure():
    servers = routing("a")
    for _ in range(64):
        servers.failed(servers.find("a"), now=1.0)
    assert servers.find("a").rests_until == 1.0 + SHORTEST_REST_S


def test_a_server_that_failed_earns_its_share_again():
    servers = routing("a", limit=8)
    server = servers.find("a")
    servers.failed(server, now=0.0)
    shares = []
    for _ in range(5):
        shares.append(len(taken(servers, now=1.0)))
        server.in_flight = 0
        servers.succeeded(server)
    assert shares == [1, 2, 4, 8, 8]


def test_another_is_chosen_where_there_is_one_in_service():
    servers = routing("a", "b", limit=1)
    assert chosen(servers, avoid="a") == "b"
    servers.find("b").in_flight = 1
    assert chosen(servers, avoid="a") is None  # it waits for the other
    assert servers.leave_out("b")
    assert chosen(servers, avoid="a") == "a"


def test_the_last_server_in_service_is_not_left_out():
    servers = routing("a", "b")
    assert servers.leave_out("a") and not servers.leave_out("b")
    assert {s.url for s in taken(servers, 0.0)} == {"b"}
    servers.take_back("a")
    assert chosen(servers) == "a" and servers.find("a").share == 1


def test_naming_a_silent_server_again_does_not_bring_it_back_and_naming_it_anew_does():
    servers = routing("a", "b")
    servers.leave_out("a")
    assert servers.set_servers(["a", "b"]) == []
    assert chosen(servers) == "b"
    assert servers.set_servers(["b"]) == ["a"]
    servers.set_servers(["a", "b"])
    assert chosen(servers) == "a" and servers.find("a").share == 1


def test_naming_a_failing_server_again_ends_its_rest_and_no_more():
    servers = routing("a")
    servers.failed(servers.find("a"), now=0.0)
    servers.set_servers(["a"])
    assert len(taken(servers, now=0.0)) == 1


def test_what_is_in_flight_on_servers_that_were_removed_is_capacity_of_its_own():
    servers = routing("a", "b", limit=2)
    servers.find("b").in_flight = 1
    servers.set_servers(["a"])
    assert (servers.capacity, servers.in_flight, servers.urls) == (3, 0, ["a", "b"])


def test_a_server_that_comes_back_after_it_left_inherits_nothing():
    servers = routing("a", "b", limit=4)
    servers.failed(servers.find("a"), now=0.0)
    servers.leave_out("a")
    servers.forget("a")
    assert servers.urls == ["b"] and servers.capacity == 4
    servers.set_servers(["a"])
    assert len(taken(servers, now=0.0)) == 4


def test_a_held_server_gets_nothing_and_counts_only_what_it_has():
    routing = Routing(4)
    routing.hold("b", "its weights are old")  # before it is routed to
    routing.set_servers(["a", "b"])
    routing.find("b").in_flight = 1
    assert routing.capacity == 4 + 1 and routing.held == {"b": "its weights are old"}
    assert [routing.choose(0.0).url, routing.choose(0.0, avoid="a").url] == ["a", "a"]
    assert not routing.leave_out("a")  # there is no other that takes requests
    routing.hold("a", "its weights are old")
    assert routing.choose(0.0) is None and routing.has_no_usable_server and not routing.is_empty
    assert routing.release("b") and not routing.release("b")
    assert routing.choose(0.0).url == "b"


def test_a_server_that_left_is_not_held_for_what_it_was():
    routing = Routing(4)
    routing.set_servers(["a"])
    routing.hold("a", "its weights are lost")
    routing.forget("a")
    routing.set_servers(["a"])
    assert routing.choose(0.0).url == "a"
