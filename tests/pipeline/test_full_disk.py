"""A run whose disk is full for a while: it waits for room, and what it did is whole."""

import json
import time

import pytest

from contracts.records import StepClosed
from tests.pipeline.runs import (
    assert_accounted,
    finish,
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


def closed(run) -> int:
    return sum(isinstance(record, StepClosed) for record in records(run, "trainer_events"))


def stands_still(run, for_s: float) -> bool:
    before = closed(run)
    time.sleep(for_s)  # nothing tells of what does not happen
    return closed(run) == before


def test_a_run_waits_for_room_and_ends_well(small_disk):
    """Nobody is taken for hung meanwhile."""
    run = small_disk / "run"
    hung = f"world.heartbeat_timeout_s={HUNG_S}"
    gate = StepGate(small_disk.parent, steps=4)
    launcher = start(run, "max_steps=20", "checkpoint.every=2", hung, *gate.settings)
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
