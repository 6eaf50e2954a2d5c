"""Islands in processes of their own, with torchft's lighthouse: some are killed, stopped, or start again."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from contracts.support.addresses import LOOPBACK
from contracts.trainer import WorkerSpec
from extensions.islands.lighthouse import LighthouseMembership, _client
from extensions.islands.links import connected_group
from extensions.islands.ranks import IslandRanks
from tests.extensions.islands.processes import (
    IslandProcess,
    LighthouseProcess,
    alone,
    same_where_both_were,
    together,
)
from tests.extensions.islands.workers import OPTIMIZER
from tests.limits import HANG_S
from tests.ports import free_port

pytestmark = pytest.mark.engines
Start = Callable[..., IslandProcess]


@pytest.fixture
def lighthouse() -> Iterator[LighthouseProcess]:
    process = LighthouseProcess(free_port())
    yield process
    process.kill()


@pytest.fixture
def start(tmp_path: Path, lighthouse: LighthouseProcess) -> Iterator[Start]:
    """Returns a function that starts an island by name."""
    started = []

    def start_island(name: str, **options: object) -> IslandProcess:
        started.append(IslandProcess(tmp_path, lighthouse.url, name, **options))
        return started[-1]

    yield start_island
    for island in started:
        island.kill()


def test_an_island_that_is_killed_costs_the_others_one_attempt_and_rejoins_by_replay(start):
    islands = [start(f"island-{number}", timeout_s=10) for number in range(3)]
    before = [island.next(together(3)) for island in islands]
    islands[2].kill()
    without = [island.next(together(2)) for island in islands[:2]]
    assert all(line["alone"] == 0 for lines in without for line in lines)
    more = [islands[0].next(together(2)), islands[1].next(together(2))]
    again = start("island-2", timeout_s=10)
    found = again.next(together(3))
    after = [island.next(together(3)) for island in islands[:2]]
    assert found[0]["behind"] > 0
    assert same_where_both_were(found, [*after[0], *islands[0].next(), *islands[0].next()])
    whole = [before[i] + without[i] + more[i] + after[i] for i in (0, 1)]
    assert same_where_both_were(*whole)
    assert [island.end() for island in (*islands[:2], again)] == [0, 0, 0]


@pytest.mark.long
def test_an_island_that_is_stopped_for_a_while_is_merged_with_its_drift(start, lighthouse):
    """Then both train alone without their lighthouse, and meet when it is back."""
    islands = [start(f"island-{number}", wait_s=20, timeout_s=2) for number in range(2)]
    for island in islands:
        island.next(together(2))
    islands[1].pause()
    islands[0].next(together(1))
    islands[0].next(together(1))
    islands[1].go_on()
    back = islands[1].next(together(2))
    with_it = islands[0].next(together(2))
    assert max(line["behind"] for line in back) > 0
    assert same_where_both_were(back, [*with_it, *islands[0].next(), *islands[0].next()])
    lighthouse.kill()
    for island in islands:
        without = island.next(alone)[-1]
        assert island.next()[-1]["round"] == without["round"]
    lighthouse.start()
    after = [island.next(together(2)) for island in islands]
    assert after[0][-1]["drift_norm"] > 0
    assert same_where_both_were(*after)
    assert all(island.is_running for island in islands)


def membership(lighthouse: LighthouseProcess, name: str, wait_s: float) -> LighthouseMembership:
    ranks = IslandRanks(WorkerSpec(model_path="", optimizer=OPTIMIZER))
    return LighthouseMembership(
        ranks, lighthouse.url, name, LOOPBACK, f"http://{name}/", wait_s, timeout_s=HANG_S
    )


def test_an_island_that_asked_in_vain_is_not_taken_for_present(lighthouse):
    """While it trains on, the others wait for it, and do not try an exchange with it."""
    first = membership(lighthouse, "first", wait_s=1)
    second = membership(lighthouse, "second", wait_s=4)
    _client(lighthouse.url).heartbeat("another", timedelta(seconds=5))
    assert first.quorum(0, "same") is None
    assert second.quorum(0, "same") is None
    for each in (first, second):
        each.leave()


def test_who_is_no_island_is_left_out_of_a_round(lighthouse):
    """One that asks the lighthouse with nothing to say, under names that come first and last."""
    both = [membership(lighthouse, name, wait_s=HANG_S) for name in ("first", "second")]
    strangers = [_client(lighthouse.url), _client(lighthouse.url)]
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(each.quorum, 3, "same") for each in both]
        for name, client in zip(("aaa", "zzz"), strangers, strict=True):
            threads.submit(client.quorum, name, timedelta(seconds=30), step=10**9)
        found = [meeting.result(HANG_S) for meeting in asked]
    assert [(meeting.size, meeting.rank, meeting.round) for meeting in found] == [(2, 0, 3), (2, 1, 3)]
    assert found[0].lineage == "same" and found[0].sources == ["http://second/"]
    for each in both:
        each.leave()


@pytest.mark.parametrize("store", ["", "nonsense", "127.0.0.1:99999999", "127.0.0.1:1", ":"])
def test_a_rendezvous_that_is_none_is_an_exchange_that_fails(store):
    group = connected_group(LOOPBACK, store, "round", (0, 2), timeout_s=1)
    with pytest.raises(ConnectionError, match="no links to the other islands"):
        group.send([], 1, 0)
