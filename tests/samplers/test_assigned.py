"""Which problem was due follows from what the record says."""

from collections import Counter

from pipelinerl.samplers.assigned import Assigned, assigned
from tests.samplers.domains import Labelled


def drawn(sampler: Assigned, versions: list[int]) -> list[int]:
    return [sampler.next(version) for version in versions]


def test_anyone_can_say_which_problem_was_due():
    versions = [0, 0, 0, 1, 1, 4]
    counts = [0, 1, 2, 0, 1, 0]
    due = [assigned(7, "node-3", v, n, 1000) for v, n in zip(versions, counts, strict=True)]
    assert drawn(Assigned(Labelled(1000), 7, "node-3"), versions) == due


def test_seed_node_version_and_count_each_change_the_problem():
    """Also at version 0, and where the product of two of them is the same."""
    due = {
        (seed, node, version, count): assigned(seed, node, version, count, 10**12)
        for seed in range(3)
        for node in ("1", "2", "11", "12")
        for version in (0, 1, 2, 11, 12)
        for count in range(20)
    }
    assert len(set(due.values())) == len(due)


def test_problems_come_alike():
    counts = Counter(assigned(0, "a", n // 100, n % 100, 20) for n in range(20_000))
    assert len(counts) == 20 and all(850 < count < 1150 for count in counts.values())
