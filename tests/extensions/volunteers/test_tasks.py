"""The queue, the leases and who is there: pure logic under a given clock."""

import pytest

from contracts.inference import SamplingParameters
from extensions.volunteers.gateway.near_misses import are_too_many, binomial_quantile, log_e_value
from extensions.volunteers.gateway.presence import ACTIVE_S, Presence
from extensions.volunteers.gateway.queue import CompletionQueue, Wanted
from extensions.volunteers.gateway.tasks import FIRST_PAUSE_S, Tasks
from extensions.volunteers.link import link_of, new_link


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def wanted(max_tokens: int = 16) -> Wanted:
    return Wanted([1], SamplingParameters(max_tokens), bytes(32))


def anything(_: Wanted) -> bool:
    return True


def test_what_waits_longest_is_first_with_others_of_its_kind():
    queue = CompletionQueue()
    first, short, third = wanted(), wanted(8), wanted()
    for each in (third, short, first):  # in any order
        queue.put(each)
    assert queue.take(16, lambda each: each is not first) == [short]
    queue.put(short)
    assert queue.take(16, anything) == [first, third]
    queue.put(first)  # it was given back, and keeps its place
    assert queue.take(16, anything) == [first]
    short.given_up = True
    assert queue.first(anything) is None and len(queue) == 0


def test_a_task_expires_unless_it_is_audited():
    clock = Clock()
    tasks = Tasks(30.0, clock)
    one = tasks.grant("a", "run", 1, [wanted()])
    two = tasks.grant("a", "run", 1, [wanted()])
    two.uploaded = True
    clock.now = 29.0
    assert not tasks.has_expired(one)
    clock.now = 30.0
    assert [each for each in tasks.every() if tasks.has_expired(each)] == [one]
    assert tasks.find(one.name, "b") is None


def test_pauses_double_and_a_volunteer_that_mostly_delivers_has_none():
    clock = Clock()
    tasks = Tasks(30.0, clock)
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S):
        for _ in range(5):
            assert tasks.give_back(tasks.grant("a", "run", 1, [])) == 0
        assert tasks.give_back(tasks.grant("a", "run", 1, [])) == pause_s
        clock.now += pause_s
        assert tasks.paused_s("a") == 0
    for number in range(200):
        task = tasks.grant("b", "run", 1, [])
        if number % 20:
            tasks.close(task)
        else:
            assert tasks.give_back(task) == 0


def test_who_is_there_and_the_oldest_version_that_it_samples_with():
    clock = Clock()
    presence = Presence(clock)
    assert presence.oldest(5) == 5
    presence.seen("a", 3)
    presence.begin_asking("b", 7)
    assert presence.active() == {"a", "b"}
    assert presence.oldest(5) == 3
    clock.now = ACTIVE_S + 1
    assert presence.active() == {"b"}
    assert presence.active(["c"]) == {"b", "c"}
    presence.end_asking("b", is_there=False)
    assert presence.active() == set()


def test_near_misses_of_an_honest_rate_are_never_too_many_and_of_a_liars_soon():
    rate = 0.01
    assert not any(are_too_many(n, round(rate * n), rate) for n in range(1, 200_000, 997))
    assert not are_too_many(3, 3, rate)
    liars = next(n for n in range(1, 10_000) if are_too_many(n, round(5 * rate * n), rate))
    assert liars < 2000


def test_an_e_value_has_an_expectation_of_at_most_one():
    from math import comb, exp

    n, rate = 40, 0.05
    chances = [comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)]
    assert sum(p * exp(log_e_value(n, k, rate)) for k, p in enumerate(chances)) == pytest.approx(1.0)


@pytest.mark.parametrize("trials, rate", [(10, 0.0), (100, 0.01), (900, 0.002), (50, 0.5)])
def test_binomial_quantile(trials, rate):
    from math import comb

    def beyond(k: int) -> float:
        return sum(comb(trials, j) * rate**j * (1 - rate) ** (trials - j) for j in range(k + 1, trials + 1))

    k = binomial_quantile(trials, rate, 1e-9)
    assert beyond(k) < 1e-9
    assert k == 0 or beyond(k - 1) >= 1e-9


def test_a_link_is_read_as_it_was_written():
    link = new_link("https://run.example.org/volunteers/", "ab" * 32)
    assert link_of(link.text) == link
    for wrong in ("", "https://run.example.org/", "ftp://a/#" + "A" * 64, link.text[:-4], "x#%%%"):
        with pytest.raises(ValueError, match="no invite link"):
            link_of(wrong)
