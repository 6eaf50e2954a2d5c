"""A simulated server's clock, by hand."""

import math

import pytest

from contracts.records import VersionSpan
from extensions.simulator.rates import Rates
from extensions.simulator.server import Server

RATES = Rates(decode_s=1.0, decode_per_request_s=0.5, train_tokens_per_s=1.0)


def test_requests_go_on_at_the_speed_that_their_number_allows():
    server = Server(RATES)
    assert server.next_end() == math.inf
    server.start(0.0, 0, 0, tokens=4)
    assert server.next_end() == pytest.approx(4.0)  # alone: a token a second
    server.start(2.0, 0, 1, tokens=1)  # the other has two tokens left; together 1.5 s a token
    assert server.next_end() == pytest.approx(3.5)
    assert server.end_one().member == 1
    assert server.next_end() == pytest.approx(4.5)  # one token left, alone again
    assert server.end_one().member == 0
    assert server.busy_s == pytest.approx(2.0 + 2 * 1.5 + 1.0)


def test_requests_go_on_before_a_pause_that_is_yet_to_come():
    server = Server(RATES)
    server.start(0.0, 0, 0, tokens=2)
    server.pause(3.0, until=5.0)
    assert server.next_end() == pytest.approx(2.0)
    server.end_one()
    server.start(2.0, 0, 1, tokens=2)
    assert server.next_end() == pytest.approx(6.0)  # one token before the pause, and one after it
    server.update(5.0, 1)
    assert server.next_end() == pytest.approx(6.0)


def test_a_request_that_starts_before_a_pause_gains_no_time_twice():
    server = Server(RATES)
    server.start(0.0, 0, 0, tokens=3)
    server.pause(2.0, until=4.0)
    server.start(1.0, 0, 1, tokens=8)  # the first has two tokens left; together 1.5 s a token
    assert server.next_end() == pytest.approx(6.0)
    server.end_one()
    assert server.busy_s == pytest.approx(1.0 + 2 * 5.0)
    assert server.next_end() == pytest.approx(6.0 + 6.0)


def test_each_token_has_the_version_that_sampled_it():
    server = Server(RATES)
    server.start(0.0, 0, 0, tokens=3)
    server.update(2.0, 1)
    server.update(2.0, 2)  # nothing was sampled by version 1
    request = server.end_one()
    assert server.spans(request) == [VersionSpan(0, 0, 2), VersionSpan(2, 2, 3)]
    server.start(3.0, 0, 1, tokens=2)
    assert server.spans(server.end_one()) == [VersionSpan(2, 0, 2)]
