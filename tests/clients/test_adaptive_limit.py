"""The limit follows what the server can do: it ends at the knee, and stays where nothing is measured."""

import random

import pytest

from pipelinerl.clients.adaptive_limit import MOST, AdaptiveLimit, Load

LOOK_S = 2.0
START = 64


class ModelServer:
    """Samples a token of each request in `base + each * requests` seconds, for at most `room` requests."""

    def __init__(self, base: float, each: float, room: int = 10**6, noise: float = 0.0):
        self.base = base
        self.each = each
        self.room = room
        self.noise = noise
        self.sampled = 0.0
        self.now = 0.0
        self.random = random.Random(3)

    def look(self, requests: int) -> Load:
        running = min(requests, self.room)
        speed = running / (self.base + self.each * running) * (1 + self.random.gauss(0, self.noise))
        self.sampled += speed * LOOK_S
        self.now += LOOK_S
        return Load(self.now, self.sampled, running, requests - running)


def limits(server: ModelServer, seconds: float, limit: AdaptiveLimit | None = None, full=True) -> list[int]:
    limit = limit or AdaptiveLimit(START)
    seen = []
    while server.now < seconds:
        limit.observe(server.look(limit.limit), full)
        seen.append(limit.limit)
    return seen


@pytest.mark.parametrize("knee", [4, 32, 64, 300])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_it_ends_where_one_more_request_is_worth_half_of_the_average(knee, noise):
    after = limits(ModelServer(base=0.3 * knee, each=0.3, noise=noise), seconds=3600)[-900:]
    assert knee / 1.7 <= sorted(after)[450] <= knee * 1.7


def test_it_is_there_within_minutes():
    assert limits(ModelServer(base=100.0, each=0.3), 180)[-1] > 180
    assert limits(ModelServer(base=1.2, each=0.3), 240)[-1] < 12


def test_trials_become_rare_where_they_bring_nothing():
    seen = limits(ModelServer(base=9.0, each=0.3), seconds=7200)
    late = seen[len(seen) // 2 :]
    usual = max(set(late), key=late.count)
    assert late.count(usual) > 0.9 * len(late)


def test_a_server_that_has_requests_wait_gets_what_it_generates_at_a_time():
    seen = limits(ModelServer(base=1000.0, each=0.3, room=40), seconds=300)
    assert seen[0] == START
    assert max(seen[5:]) <= 40 * 1.1


def test_it_follows_a_server_whose_answers_have_become_longer():
    server = ModelServer(base=60.0, each=0.3)
    limit = AdaptiveLimit(START)
    assert limits(server, 3600, limit)[-1] > 100
    server.each = 3.0
    assert limits(server, 3600 + 3600, limit)[-1] < 45


def test_nothing_changes_while_the_server_is_not_full():
    assert set(limits(ModelServer(base=1000.0, each=0.3), 600, full=False)) == {START}


def test_it_has_bounds():
    assert max(limits(ModelServer(base=1e6, each=0.001), seconds=900)) == MOST
    assert min(limits(ModelServer(base=0.001, each=1.0), seconds=900)) == 1


def test_a_server_that_restarts_is_measured_anew():
    limit = AdaptiveLimit(START)
    limit.observe(Load(0.0, 1e6, 64, 0), True)
    limit.observe(Load(11.0, 2e6, 64, 0), True)
    limit.observe(Load(13.0, 50.0, 64, 0), True)
    limit.observe(Load(24.0, 900.0, 64, 0), True)
    assert limit.limit == START


def test_a_server_that_samples_nothing_is_left_as_it_is():
    limit = AdaptiveLimit(START)
    for second in range(0, 600, 2):
        limit.observe(Load(float(second), 0.0, limit.limit, 0), True)
        assert limit.limit == START
