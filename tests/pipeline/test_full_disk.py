"""Runs whose disk is full for a while: they wait for room, and what they did is whole."""

import json
import time

import pytest

from contracts.records import CheckpointSaved, StepClosed
from pipelinerl.process import REDIS_VARIABLE
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    processes_of,
    records,
    resumptions_of,
    start,
    wait_for,
    wait_for_record,
)
from tests.small_disk import fill, make_room
from tests.step_gate import StepGate

pytestmark = pytest.mark.long

HUNG_S = 10.0


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    yield
    wait_for(lambda: processes_of(tmp_path) == [])


def closed(run) -> int:
    return sum(isinstance(record, StepClosed) for record in records(run, "trainer_events"))


def stands_still(run, for_s: float) -> bool:
    before = closed(run)
    time.sleep(for_s)  # nothing tells of what does not happen
    return closed(run) == before


@pytest.mark.parametrize("backend", ["files", pytest.param("redis", marks=pytest.mark.long)])
def test_a_run_waits_for_room_and_ends_well(small_disk, backend):
    """Nobody is taken for hung meanwhile."""
    run = small_disk / "run"
    hung = f"world.heartbeat_timeout_s={HUNG_S}"
    gate = StepGate(small_disk.parent, steps=4)
    settings = (f"streams={backend}", "max_steps=20", "checkpoint.every=2")
    launcher = start(run, *settings, hung, *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=4)
    fill(small_disk)
    gate.open()
    wait_for(lambda: stands_still(run, for_s=2 * HUNG_S))
    assert launcher.poll() is None
    make_room(small_disk)
    status, err = finish(launcher)
    assert status == 0, err
    assert f"the disk of {run} is full: what has to be written there waits for room" in err
    assert f"the disk of {run} has room again" in err
    assert len(assert_accounted(run)["trained"]) == 20 * 8
    assert resumptions_of(run) == []
    assert json.loads((run / "summary.json").read_text())["optimizer_steps"] == 20


def test_a_checkpoint_without_room_is_left_out_and_the_run_goes_on(small_disk):
    """Its streams lie elsewhere."""
    run = small_disk.parent / "run"
    fill(small_disk)
    gate = StepGate(run.parent, steps=7)
    launcher = start(run, "max_steps=16", "checkpoint.every=2", *gate.settings)
    wait_for(lambda: (run / "config.yaml").exists())
    (run / "checkpoints").symlink_to(small_disk)
    wait_for_record(run, "trainer_events", StepClosed, count=7)
    assert not any(isinstance(record, CheckpointSaved) for record in records(run, "trainer_events"))
    make_room(small_disk)
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    saved = [event.version for event in records(run, "trainer_events") if isinstance(event, CheckpointSaved)]
    assert saved[-1] == 16 and 2 not in saved
    assert "version 2 is not saved: there is no room" in (run / "logs" / "trainer-0.log").read_text()
    assert len(assert_accounted(run)["trained"]) == 16 * 8
