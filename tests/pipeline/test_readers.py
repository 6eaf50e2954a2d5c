"""What is read from a run that was interrupted and resumed: a group's story, the data set, the model card."""

import signal
from pathlib import Path

import pandas
import pytest
from huggingface_hub import ModelCard

from contracts.records import Evaluated, Rollout, Started, StepClosed
from pipelinerl.paths import ROOT
from pipelinerl.streams.group_history import read_history
from pipelinerl.streams.group_story import tell
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.view.parquet import export_rollouts
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    records,
    resume,
    resumptions_of,
    start,
    wait_for_record,
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 10 steps that was interrupted after 5, with rollouts in flight, and resumed from version 4."""
    run = tmp_path_factory.mktemp("readers") / "run"
    domain = ("domain.slow=0.8", "domain.slow_s=0.5", "domain.agreeing=0.2", "domain.failing=0.05")
    keys = ("max_steps=10", "checkpoint.every=4", "rollout.retries=0")
    launcher = start(run, *(f"+{option}" for option in domain), *keys)
    wait_for_record(run, "trainer_events", StepClosed, count=5)
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher)[0] == 130
    status, err = finish(resume(run))
    assert status == 0, err
    return run


def story(run: Path, group: int) -> str:
    with recorded_streams(run) as streams:
        return "\n".join(tell(read_history(streams, group)))


def test_every_group_that_was_lost_names_the_one_that_has_its_draw(run):
    (resumed,) = resumptions_of(run)
    started = [event for event in records(run, "actor_events") if isinstance(event, Started)]
    assert resumed.interrupted and resumed.redraws
    for lost in resumed.interrupted:
        (draw,) = [event.draw for event in started if event.group_id == lost]
        later = [event.group_id for event in started if event.draw == draw and event.group_id > lost]
        told = story(run, lost)
        order = [
            "rollouts of problem",
            "the run stops, and resumes from version 4",
            "dropped as interrupted",
            f"its problem is drawn again as group {later[0]}" if later else "but no group has started yet",
        ]
        assert sorted(order, key=told.index) == order
        if later:
            assert f"draw {draw} of the sampler, which group {lost} had" in story(run, later[0])


def test_the_story_of_a_group_ends_as_the_ledger_says(run):
    endings = {"trained": "trained: its step made version", "zero_advantage": "dropped as zero_advantage"}
    outcomes = assert_accounted(run)
    for how, ending in endings.items():
        group = max(outcomes[how])  # of the newest launch
        assert ending in story(run, group).splitlines()[-1]
    members = [r for r in records(run, "rollouts") if isinstance(r, Rollout)]
    trained = [member for member in members if member.group_id in outcomes["trained"]]
    failed = next(member for member in trained if member.failed)
    assert f"{failed.rollout_id}: in no row, since it failed" in story(run, failed.group_id)


def test_the_data_set_has_every_rollout_and_what_became_of_it(run, tmp_path):
    export_rollouts(run, tmp_path / "out")
    train = pandas.read_parquet(tmp_path / "out" / "train")
    recorded = records(run, "rollouts")
    assert train.rollout_id.tolist() == [rollout.rollout_id for rollout in recorded]
    trained = assert_accounted(run)["trained"]
    assert {*train[train.outcome == "trained"].group_id} == trained
    assert (train.outcome == "in_flight").sum() == 0
    assert len(pandas.read_parquet(tmp_path / "out" / "held_out")) == len(records(run, "eval_rollouts"))


def test_the_final_model_has_a_card_with_its_last_evaluation(run):
    card = ModelCard.load(run / "checkpoints" / "final" / "README.md")
    last = [event for event in records(run, "actor_events") if isinstance(event, Evaluated)][-1]
    assert last.version == 10 and f"`{last.success:.3f} (v10" in card.text
    assert ", version 10" in card.text and "after 10 optimizer steps" in card.text
    assert str(run) not in str(card) and str(ROOT) not in str(card)
