import pytest

from tests.conformance.broken_servers import MUTANTS as BROKEN_SERVERS
from tests.conformance.trainer_mutants import MUTANTS as BROKEN_TRAINERS
from tests.rotation import PARTS, of_other_turns, part_of, rotated

TRAINERS = [mutant.trainer.__name__ for mutant in BROKEN_TRAINERS]


@pytest.mark.parametrize("names", [list(BROKEN_SERVERS), TRAINERS])
def test_eight_runs_try_each_broken_adapter_once(names):
    eighths = [rotated(names, part) for part in range(PARTS)]
    assert sorted(name for names in eighths for name in names) == sorted(rotated(names, None))
    assert len({name for names in eighths for name in names}) == len(names)
    assert max(map(len, eighths)) - min(map(len, eighths)) <= 1


def test_commits_with_hashes_in_a_row_are_different_eighths():
    assert [part_of("", f"a{last}") for last in range(PARTS)] == list(range(PARTS))


def test_eight_runs_try_each_marked_test_once_and_all_is_all():
    marked = list(range(20))
    ours = [set(marked) - of_other_turns(marked, part) for part in range(PARTS)]
    assert sorted(test for tests in ours for test in tests) == marked
    assert of_other_turns(marked, None) == set()


def test_a_setting_goes_before_the_commit():
    assert part_of("all", "1") is None
    assert part_of("3", "1") == 3
    with pytest.raises(ValueError, match="ROTATION=8 is not all, or 0 to 7"):
        part_of("8", "1")
