import pytest

from tests.conformance.broken_servers import MUTANTS as BROKEN_SERVERS
from tests.conformance.trainer_mutants import MUTANTS as BROKEN_TRAINERS
from tests.rotation import PARTS, part_of, rotated

TRAINERS = [mutant.trainer.__name__ for mutant in BROKEN_TRAINERS]


@pytest.mark.parametrize("names", [list(BROKEN_SERVERS), TRAINERS])
def test_four_runs_try_each_broken_adapter_once(names):
    quarters = [rotated(names, part) for part in range(PARTS)]
    assert sorted(name for names in quarters for name in names) == sorted(rotated(names, None))
    assert len({name for names in quarters for name in names}) == len(names)
    assert max(map(len, quarters)) - min(map(len, quarters)) <= 1


def test_four_commits_in_a_row_of_hashes_are_four_quarters():
    assert [part_of("", commit) for commit in ("a0", "a1", "a2", "a3")] == [0, 1, 2, 3]


def test_a_setting_goes_before_the_commit():
    assert part_of("all", "1") is None
    assert part_of("3", "1") == 3
    with pytest.raises(ValueError, match="ROTATION=4 is not all, or 0 to 3"):
        part_of("4", "1")
