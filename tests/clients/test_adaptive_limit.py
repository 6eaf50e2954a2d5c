"""The limit follows what the server can do: it ends at the knee, and stays where nothing is measured."""

import random

import pytest

from pipelinerl.clients import adaptive_limit
from pipelinerl.clients.adaptive_limit import MOST, AdaptiveLimit, Load

LOOK_S = 2.0
START = 64


class ModelServer:
    """Samples a token of each request in `base + each * requests` seconds.

    tokens: of an answer. Beyond the limit requests end as they would have, so a lower one takes effect late.
    pause_s: of an update, every `update_every_s`. The server tells of a pause when it has ended.
    offered: requests that there are at most.
    """

    def __init__(
        self,
        base: float,
        each: float,
        noise: float = 0.0,
        tokens: float = 0.0,
        pause_s: float = 0.0,
        update_every_s: float = 30.0,
        offered: int = 10**6,
    ):
        self.base = base
        self.each = each
        self.noise = noise
        self.tokens = tokens
        self.pause_s = pause_s
        self.update_every_s = update_every_s
        self.offered = offered
        self.under_way = 0.0
        self.sampled = 0.0
        self.paused = 0.0
        self.now = 0.0
        self.random = random.Random(3)

    def look(self, limit: int) -> Load:
        before = self.under_way
        limit = min(limit, self.offered)
        running = max(before, limit)
        speed = running / (self.base + self.each * running) * (1 + self.random.gauss(0, self.noise))
        since = self.now % self.update_every_s
        paused = min(max(self.pause_s - since, 0.0), LOOK_S)
        if paused < LOOK_S and since < self.pause_s:
            self.paused += self.pause_s
        self.sampled += speed * (LOOK_S - paused)
        self.now += LOOK_S
        ended = speed * LOOK_S / self.tokens if self.tokens else before
        self.under_way = max(limit, before - ended)
        return Load(self.now, self.sampled, self.paused, max(self.under_way, limit))


def limits(server: ModelServer, seconds: float, limit: AdaptiveLimit | None = None) -> list[int]:
    limit = limit or AdaptiveLimit(START)
    seen = []
    while server.now < seconds:
        limit.observe(server.look(limit.limit))
        seen.append(limit.limit)
    return seen


OTHERWISE = {
    "as it is": {},
    "noisy": {"noise": 0.05},
    "with long answers": {"tokens": 60.0},
    "with updates": {"pause_s": 1.5, "noise": 0.03},
    "with long updates": {"pause_s": 11.0, "update_every_s": 45.0, "noise": 0.03},
    "with frequent updates": {"pause_s": 5.0, "update_every_s": 12.0, "noise": 0.03},
}


@pytest.mark.parametrize("knee", [4, 32, 64, 100])
@pytest.mark.parametrize("how", OTHERWISE)
def test_it_ends_where_one_more_request_is_worth_half_of_the_average(knee, how):
    after = limits(ModelServer(base=0.3 * knee, each=0.3, **OTHERWISE[how]), seconds=7200)[-1800:]
    assert knee / 1.7 <= sorted(after)[900] <= knee * 1.7


def test_a_lower_limit_is_judged_when_it_has_taken_effect():
    """An answer takes 200 s or more, and speed is nearly proportional to the number of requests."""
    seen = limits(ModelServer(base=0.5, each=0.0005, tokens=400.0), seconds=7200)
    assert min(seen) >= START / 1.6
    assert seen[-1] > 1.5 * START


def test_nothing_changes_while_the_server_is_not_full():
    limit = AdaptiveLimit(START)
    for number in range(300):
        limit.observe(Load(2.0 * number, 1e4 * number, 0.0, 0.5 * START))
    assert limit.limit == START


def test_a_trial_for_which_requests_are_missing_ends_and_fewer_are_tried():
    server = ModelServer(base=0.3 * 20, each=0.3, offered=70)
    assert 20 / 1.7 <= sorted(limits(server, seconds=3600)[-900:])[450] <= 20 * 1.7


@pytest.mark.parametrize("start", [START, 115])
def test_it_has_bounds_and_leaves_them(start):
    server = ModelServer(base=1e6, each=0.001)
    limit = AdaptiveLimit(start)
    assert max(limits(server, 1800, limit)) > MOST / 1.2
    server.base, server.each = 0.001, 1.0
    assert min(limits(server, 9000, limit)) == 1
    server.base, server.each = 1e6, 0.001
    assert limits(server, 30_000, limit)[-1] > START


def test_a_server_that_restarts_is_measured_anew_from_the_start():
    server = ModelServer(base=1.2, each=0.3)
    limit = AdaptiveLimit(START)
    assert limits(server, 1200, limit)[-1] < 12
    server.sampled = 0.0
    server.base = 100.0
    assert limits(server, 1202, limit)[-1] == START
    assert max(limits(server, 1382, limit)) == MOST


def in_a_trial(server: ModelServer) -> AdaptiveLimit:
    """Returns the limit of a server when it has just settled for its first trial."""
    limit = AdaptiveLimit(START)
    while limit.limit == START:
        limits(server, server.now + LOOK_S, limit)
    limits(server, server.now + adaptive_limit.SETTLES_S + LOOK_S, limit)
    return limit


def settles_anew(server: ModelServer, limit: AdaptiveLimit) -> bool:
    """Returns whether the trial goes on as at its begin."""
    tried = limit.limit
    ends = server.now + adaptive_limit.SETTLES_S + adaptive_limit.WINDOW_S
    before = limits(server, ends - LOOK_S, limit)
    after = limits(server, ends + 2 * LOOK_S, limit)
    return set(before) == {tried} and after[-1] > tried


@pytest.mark.parametrize("sampled_meanwhile", [0.0, 1e7])
def test_time_in_which_nobody_looked_at_the_server_is_in_no_window(sampled_meanwhile):
    """A server that hung, or one that an evaluation was pinned to."""
    server = ModelServer(base=100.0, each=0.3)
    limit = in_a_trial(server)
    server.now += 900.0
    server.sampled += sampled_meanwhile
    assert settles_anew(server, limit)


def test_time_in_which_the_server_had_no_requests_is_in_no_window():
    server = ModelServer(base=100.0, each=0.3)
    limit = in_a_trial(server)
    for _ in range(4):
        server.now += LOOK_S
        limit.observe(Load(server.now, server.sampled, server.paused, under_way=0.0))
    assert settles_anew(server, limit)


@pytest.mark.parametrize("begins", [9.1, 19.1, 21.1], ids=["settling", "at a window's end", "within one"])
def test_a_pause_across_two_looks_counts_in_both_or_in_none(begins):
    limit = AdaptiveLimit(START)
    for look in range(12):
        now = look * LOOK_S
        paused = min(max(now - begins, 0.0), 1.8)
        told = 1.8 if now >= begins + 1.8 else 0.0  # a server tells of a pause when it has ended
        limit.observe(Load(now, 100.0 * (now - paused), told, START))
    assert limit._kept.speed == pytest.approx(100.0)
