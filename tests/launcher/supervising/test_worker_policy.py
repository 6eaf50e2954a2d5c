"""What follows when a worker has ended, decided without processes."""

import pytest

from pipelinerl.launcher.executors.base import Ended, Lost, Placement, Running
from pipelinerl.launcher.supervising.failures import Restarts
from pipelinerl.launcher.supervising.worker_policy import WorkerAction, WorkerPolicy

PLACEMENT = Placement("node", "a")
NAMES = ["actor", "preprocessor", "trainer-0", "trainer-1"]
KILLED = Ended(PLACEMENT, -9)
ERROR = Ended(PLACEMENT, 1)


class Scene:
    """Workers that run, and a clock."""

    def __init__(self, most: int = 3, settle_s: float = 0.0):
        self.workers = WorkerPolicy(NAMES, Restarts(most), settle_s, patience_s=100)
        self.now = 0.0
        self.begin()

    def begin(self) -> None:
        self.states = {name: Running(PLACEMENT) for name in NAMES}

    def steps(
        self, made: int | None, for_s: float = 5.0, hung: tuple[str, ...] = (), done: bool = False
    ) -> list[WorkerAction]:
        """What is to be done until they begin again or fail, or this time has passed."""
        said = []
        until = self.now + for_s
        while self.now < until and not {WorkerAction.RESTART, WorkerAction.FAIL} & {*said}:
            self.now += 0.25
            said.append(self.workers.next_action(self.states, self.now, made, hung, done))
        return [step for step in said if step is not WorkerAction.WAIT]


def test_nothing_is_done_while_all_run_or_have_ended_well():
    scene = Scene()
    assert scene.steps(made=3) == []
    for name in NAMES:
        scene.states[name] = Ended(PLACEMENT, 0)
        assert scene.steps(made=3, done=True) == []


@pytest.mark.parametrize(
    ("names", "steps"), [(["actor"], [WorkerAction.SAVE]), (NAMES[2:], [WorkerAction.RESTART])]
)
def test_one_that_ends_well_before_the_last_step_has_failed(names, steps):
    scene = Scene()
    scene.states |= dict.fromkeys(names, Ended(PLACEMENT, 0))
    assert scene.steps(made=3) == steps


def test_the_trainer_saves_before_the_workers_begin_again():
    scene = Scene()
    scene.states["actor"] = KILLED
    assert scene.steps(made=3, for_s=50) == [WorkerAction.SAVE]
    scene.states |= {"trainer-0": Ended(PLACEMENT, 0), "trainer-1": Ended(PLACEMENT, 0)}
    assert scene.steps(made=3) == [WorkerAction.RESTART]
    scene.begin()
    assert scene.steps(made=None) == []


def test_a_trainer_that_does_not_come_to_save_is_not_waited_for_without_end():
    scene = Scene()
    scene.states["actor"] = KILLED
    assert scene.steps(made=3, for_s=200) == [WorkerAction.SAVE, WorkerAction.RESTART]


@pytest.mark.parametrize(
    ("states", "made", "hung"),
    [
        pytest.param({"trainer-1": KILLED}, 3, (), id="a rank is gone"),
        pytest.param({"actor": KILLED, "trainer-0": ERROR}, 3, (), id="a rank failed in its wake"),
        pytest.param({"actor": KILLED}, None, (), id="no step is made since the last checkpoint"),
        pytest.param({"preprocessor": Lost(PLACEMENT, "a node is gone")}, None, (), id="a node is lost"),
        pytest.param({"reference": Lost(PLACEMENT, "a node is gone")}, None, (), id="a service is lost"),
        pytest.param({"trainer-0": Ended(PLACEMENT, 143)}, 3, ("trainer-0",), id="a rank hung"),
    ],
)
def test_where_nothing_can_be_saved_they_begin_again_at_once(states, made, hung):
    scene = Scene()
    scene.states |= states
    assert scene.steps(made, hung=hung) == [WorkerAction.RESTART]


@pytest.mark.parametrize(
    ("state", "made", "cause"),
    [
        pytest.param(ERROR, None, "trainer-0", id="an error before the first step"),
        pytest.param(Ended(PLACEMENT, 2), 7, "trainer-0", id="a refusal"),
    ],
)
def test_what_would_happen_again_ends_the_run(state, made, cause):
    scene = Scene()
    scene.states[cause] = state
    assert scene.steps(made) == [WorkerAction.FAIL]
    assert scene.workers.cause == cause


@pytest.mark.parametrize("state", [KILLED, Ended(PLACEMENT, 143)])
def test_one_that_was_killed_before_the_first_step_begins_again_also_where_others_fail_with_it(state):
    scene = Scene()
    scene.states |= {"trainer-0": ERROR, "trainer-1": state}
    assert scene.steps(made=None) == [WorkerAction.RESTART]


def test_the_cause_is_who_was_killed_although_another_was_seen_to_fail_before():
    scene = Scene(most=0)
    scene.states["trainer-0"] = ERROR
    assert scene.steps(made=4, for_s=0.5) == []
    scene.states["trainer-1"] = KILLED
    assert scene.steps(made=4) == [WorkerAction.FAIL]
    assert scene.workers.cause == "trainer-1"


def test_more_ends_than_allowed_within_ten_minutes_end_the_run():
    scene = Scene(most=2)
    for _ in range(2):
        scene.states["trainer-0"] = KILLED
        assert scene.steps(made=4, for_s=60) == [WorkerAction.RESTART]
        scene.begin()
    scene.states["trainer-0"] = KILLED
    assert scene.steps(made=4) == [WorkerAction.FAIL]
    assert scene.workers.why_not == "restarts.workers=2 allows no further restart within 10 minutes"


@pytest.mark.parametrize(("state", "hung"), [(ERROR, ()), (KILLED, ()), (KILLED, ("trainer-0",))])
def test_ends_without_a_new_version_end_the_run_however_slowly_they_come(state, hung):
    scene = Scene(most=3)
    said = []
    for made in (10, 10, None, 9, 10):
        scene.states["trainer-0"] = state
        said += scene.steps(made, hung=hung)
        scene.begin()
        scene.now += 1000
    assert said == [WorkerAction.RESTART] * 4 + [WorkerAction.FAIL]
    assert scene.workers.why_not == "they have begun again 3 times without a further step"


def test_one_that_hangs_at_each_start_ends_the_run():
    scene = Scene(most=2)
    said = []
    for _ in range(3):
        scene.states["trainer-0"] = KILLED
        said += scene.steps(None, hung=("trainer-0",))
        scene.begin()
        scene.now += 1000
    assert said == [WorkerAction.RESTART] * 2 + [WorkerAction.FAIL]


def test_the_end_of_one_that_hung_is_waited_for_before_others_are_blamed():
    scene = Scene()
    scene.states["trainer-0"] = ERROR
    assert scene.steps(None, hung=("trainer-1",)) == []
    scene.states["trainer-1"] = KILLED
    assert scene.steps(None, hung=("trainer-1",)) == [WorkerAction.RESTART]


def test_errors_at_later_and_later_steps_do_not_end_the_run():
    scene = Scene(most=3)
    for made in (*range(10, 20), None):  # the last one fails before its first step
        scene.states["trainer-0"] = ERROR
        assert scene.steps(made) == [WorkerAction.RESTART]
        scene.begin()
        scene.now += 1000
