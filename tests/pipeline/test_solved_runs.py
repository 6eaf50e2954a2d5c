"""A run that ends when it is solved: how it is decided, recorded, accounted for and resumed."""

import json

from contracts.records import CheckpointSaved, Evaluated, TrainingDone
from tests.pipeline.runs import assert_accounted, finish, of_kind, resume, start

# Half of the attempts of this domain succeed: the evaluations of versions 0 and 2 solve the run.
EASILY_SOLVED = ("stop_at={success: 0.01, evaluations: 2}", "eval.every=2", "max_steps=1000")


def test_a_solved_run_ends_by_itself_and_is_resumed_only_on_demand(tmp_path):
    run = tmp_path / "run"
    launcher = start(run, *EASILY_SOLVED, "world.trainer_ranks=2", "+domain.slow=0.5", "+domain.slow_s=0.2")
    output, err = launcher.communicate()
    assert launcher.returncode == 0, err

    (done,) = of_kind(run, "trainer_events", TrainingDone)
    evaluations = of_kind(run, "actor_events", Evaluated)
    assert done.solved == evaluations[1].version <= done.version < 1000
    assert evaluations[-1].version == done.version
    assert of_kind(run, "trainer_events", CheckpointSaved)[-1].version == done.version
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["solved_at"], summary["optimizer_steps"]) == (done.solved, done.version)
    assert summary["rollouts_dropped"]["training_done"] > 0 == summary["rollouts_lost"]
    assert_accounted(run)
    assert f" in {done.version} steps, " in output and "; solved\n" in output

    status, err = finish(resume(run))
    assert status == 2 and len(err.strip().splitlines()) == 1
    assert f"the run was solved at step {done.solved}, with held-out success" in err
    assert "stop_at=null" in err

    status, err = finish(resume(run, "stop_at=null", f"max_steps={done.version + 2}"))
    assert status == 0, err
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["solved_at"], summary["optimizer_steps"]) == (None, done.version + 2)
    assert_accounted(run)


def test_a_run_is_solved_where_no_step_closes_any_more(tmp_path):
    """All groups are dropped from the start, and the evaluation of version 0 alone decides."""
    run = tmp_path / "run"
    solved = ("stop_at={success: 0.01, evaluations: 1}", "+domain.agreeing=1", "give_up_after=1000000")
    status, err = finish(start(run, *solved))
    assert status == 0, err
    (result,) = of_kind(run, "actor_events", Evaluated)
    (done,) = of_kind(run, "trainer_events", TrainingDone)
    assert (result.version, done.version, done.solved) == (0, 0, 0)
    assert_accounted(run)
