"""The choice of the source of each transfer."""

from collections import Counter

import pytest

from extensions.stored_weights.store.sources import LONGEST_BACKOFF_S, PROBE_BYTES, PROBES, Source, Sources


def known(*speeds: float) -> Sources:
    """Returns sources of these bandwidths, in bytes per second, with equal success."""
    sources = Sources([f"http://{number}" for number in range(len(speeds))])
    for source, speed in zip(sources.all, speeds, strict=True):
        source.succeeded(PROBE_BYTES, PROBE_BYTES / speed)
    return sources


def picks(sources: Sources, count: int) -> Counter[Source]:
    return Counter(sources.pick(0.0, f"file {number}") for number in range(count))


def test_the_share_of_picks_is_that_of_the_bandwidth():
    sources = known(1e6, 3e6, 6e6)
    share = picks(sources, 10_000)
    for source, expected in zip(sources.all, (0.1, 0.3, 0.6), strict=True):
        assert share[source] / 10_000 == pytest.approx(expected, abs=0.05)


def test_servers_whose_sources_have_the_same_weights_ask_the_same_one_for_a_file():
    first = known(1e6, 2e6, 3e6)
    second = known(1e6, 2e6, 3e6)
    names = [f"file {number}" for number in range(100)]
    asked = [[sources.pick(0.0, name).url for name in names] for sources in (first, second)]
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 3


def test_a_source_that_failed_heals_within_a_hundred_picks():
    sources = known(1e6, 1e6)
    bad = sources.all[0]
    for _ in range(50):
        bad.failed(0.0)
    bad.backoff_until = 0.0
    picks(sources, 100)
    assert bad.success == pytest.approx(1.0)
    assert picks(sources, 1000)[bad] > 400


def test_failures_do_not_enter_the_bandwidth():
    source = known(1e6).all[0]
    source.failed(0.0)
    source.missed(0.0)
    assert source.bytes_per_s == pytest.approx(1e6)
    assert source.success == pytest.approx(0.7)


def test_sources_without_any_success_are_still_picked():
    sources = known(1e6, 1e6)
    for source in sources.all:
        source.success = -1.0
    assert sources.pick(0.0, "file") in sources.all


def test_three_failures_in_a_row_are_followed_by_rests_that_grow_to_a_bound():
    source = Source("http://a")
    rests = []
    for _ in range(20):
        source.failed(100.0)
        rests.append(source.backoff_until - 100.0)
    assert rests[:2] == [-100.0, -100.0]
    assert rests[2:5] == [0.5, 1.0, 2.0]
    assert rests[-1] == LONGEST_BACKOFF_S


def test_a_404_backs_off_and_leaves_success_as_it_is():
    source = Source("http://a")
    rests = []
    for _ in range(10):
        source.missed(0.0)
        rests.append(source.backoff_until)
    assert rests[:3] == [0.05, 0.1, 0.2]
    assert rests[-1] == 5.0
    assert source.success == 1.0


def test_a_resting_source_is_left_out_and_the_one_that_rests_least_is_taken_if_all_rest():
    sources = known(1e6, 1e6)
    first, second = sources.all
    first.backoff_until = 9.0
    assert set(picks(sources, 20)) == {second}
    second.backoff_until = 8.0
    assert set(picks(sources, 20)) == {second}
    assert sources.pick(0.0, "file", refused={second}) is first


def test_an_unknown_source_counts_as_the_best_known_and_gets_few_transfers_at_a_time():
    sources = Sources(["http://slow", "http://fast", "http://new"])
    slow, fast, new = sources.all
    slow.succeeded(PROBE_BYTES, PROBE_BYTES / 1e6)
    fast.succeeded(PROBE_BYTES, PROBE_BYTES / 4e6)
    share = picks(sources, 10_000)
    assert share[new] / 10_000 == pytest.approx(4 / 9, abs=0.05)
    new.running = 1
    assert new not in picks(sources, 100)
    assert sources.pick(0.0, "file", refused={slow, fast}) is None


def test_an_only_source_gets_a_few_transfers_before_its_speed_is_known():
    sources = Sources(["http://only"])
    only = sources.all[0]
    only.running = PROBES - 1
    assert sources.pick(0.0, "file") is only
    only.running = PROBES
    assert sources.pick(0.0, "file") is None
