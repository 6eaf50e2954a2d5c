"""Who is blamed for a weight update that failed, by what the members of the group say of it."""

import pytest

from pipelinerl.training.membership.blame import Ending, blame

ALL = 100
LIVE = Ending("live", ALL, first=True)


@pytest.mark.parametrize(
    ("endings", "timed_out", "blamed", "certain"),
    [
        pytest.param({"a": LIVE, "b": LIVE}, False, "", True, id="none when all are live"),
        pytest.param(
            {"a": Ending("failed", 50), "b": Ending("silent")}, False, "b", True, id="one that is gone"
        ),
        pytest.param(
            {"a": LIVE, "b": Ending("failed", ALL)}, False, "b", True, id="one that had received everything"
        ),
        pytest.param(
            {"a": Ending("failed", 20), "b": Ending("receiving", 20)}, True, "b", True, id="one that hangs"
        ),
        pytest.param(
            {"a": Ending("failed", 20), "b": Ending("failed", 20, first=True)},
            False,
            "b",
            True,
            id="the one that failed before the trainer left",
        ),
        pytest.param(
            {"a": Ending("failed", 50, first=True), "b": Ending("failed", 20, first=True)},
            False,
            "b",
            True,
            id="of those before, the one that received less",
        ),
        pytest.param(
            {"a": Ending("failed", 50, first=True), "b": Ending("failed", 20)},
            True,
            "b",
            True,
            id="in a silence, whoever received less, not whoever gave up first",
        ),
        pytest.param(
            {"a": Ending("failed", 20), "b": Ending("failed", 20), "c": LIVE},
            False,
            "ab",
            False,
            id="all that cannot be told apart",
        ),
    ],
)
def test_the_fewest_members_that_explain_the_failure_are_blamed(endings, timed_out, blamed, certain):
    result = blame(endings, ALL, timed_out)
    assert (result.servers, result.certain) == (set(blamed), certain)
