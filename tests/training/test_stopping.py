import pytest

from contracts.records import Evaluated
from pipelinerl.config import StopAtConfig
from pipelinerl.training.stopping import Stopping

TWICE = StopAtConfig(success=0.9, evaluations=2)


def results(*successes: float) -> list[Evaluated]:
    return [
        Evaluated(version=10 * i, problems=8, success=success, first_version=10 * i, last_version=10 * i)
        for i, success in enumerate(successes)
    ]


@pytest.mark.parametrize(
    ("successes", "solved"),
    [
        ([0.9, 0.9], 10),  # what is reached counts
        ([0.95, 0.89, 0.95], None),  # in a row
        ([0.2, 0.95, 0.89, 0.95, 0.96], 40),
        ([0.2, 0.95, 0.95, 0.5, 1.0, 1.0], 20),  # the first time
        ([], None),
    ],
)
def test_a_run_is_solved_by_so_many_evaluations_in_a_row(successes, solved):
    stopping = Stopping(TWICE, results(*successes))
    assert (stopping.solved and stopping.solved.version) == solved
    assert Stopping(None, results(*successes)).solved is None  # without stop_at no run is solved
