"""An island whose link is cut for a while: `make soak-islands-network`. It needs root."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.islands.network import HERE, Network, address
from tests.islands.processes import IslandProcess, LighthouseProcess, alone, same_where_both_were, together
from tests.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.engines]
MANY = 100_000  # rounds: alone, an island makes many of them in a second
Start = Callable[..., IslandProcess]


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network(islands=2)
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path, network: Network) -> Iterator[Start]:
    """Returns a function that starts the island of a number in its namespace."""
    lighthouse = LighthouseProcess(free_port(), address=HERE)
    started = []

    def start_island(number: int, **options: object) -> IslandProcess:
        given = {"address": address(number), "wait_s": 8, "timeout_s": 3} | options
        inside = network.inside(number)
        started.append(IslandProcess(tmp_path, lighthouse.url, f"island-{number}", inside, **given))
        return started[-1]

    yield start_island
    for island in started:
        island.kill()
    lighthouse.kill()


def test_an_island_that_is_cut_off_trains_alone_and_is_merged_with_its_drift(start, network):
    islands = [start(number, max_behind=MANY, keep=MANY) for number in range(2)]
    before = [island.next(together(2)) for island in islands]
    network.cut(1)
    cut_off = islands[1].next(alone)
    cut_off += islands[1].next(alone)
    others = islands[0].next(together(1))
    network.mend(1)
    back = islands[1].next(together(2))
    after = islands[0].next(together(2))
    assert cut_off[-1]["round"] == cut_off[-2]["round"]
    assert max(line["behind"] for line in back) > 0
    assert back[-1]["drift_norm"] > before[1][-1]["drift_norm"]
    assert "updates are dropped" not in islands[1].log.read_text()
    assert same_where_both_were([*before[1], *cut_off, *back], [*before[0], *others, *after]) > 1
    assert [island.end() for island in islands] == [0, 0]


def test_the_drift_of_an_island_that_was_cut_off_for_longer_is_dropped(start, network):
    islands = [start(number, max_behind=1) for number in range(2)]
    for island in islands:
        island.next(together(2))
    network.cut(1)
    others = [line for _ in range(3) for line in islands[0].next(together(1))]
    network.mend(1)
    back = islands[1].next(together(2))
    after = islands[0].next(together(2))
    assert max(line["behind"] for line in back) > 1
    assert "updates are dropped" in islands[1].log.read_text()
    assert same_where_both_were(back, [*others, *after]) > 0
