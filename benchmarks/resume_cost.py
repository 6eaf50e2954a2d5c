"""Measures the cost of resuming a run, by the number of groups that it has recorded."""

import tempfile
import time
from pathlib import Path

from contracts.records import SamplerState, Settled, Started, StepClosed
from pipelinerl.launcher.resume import launcher_events, resume
from pipelinerl.streams import Streams
from pipelinerl.streams.files import FileStreams
from pipelinerl.training.checkpoints import Checkpoints, Position
from tests.builders import rollout

GROUP_SIZE = 8
IN_STEP = 16  # groups in a step
OPEN = 64  # groups that no step has trained on


def resume_cpu_s(groups: int) -> float:
    """Returns the CPU seconds of resuming a run with `groups` groups from its newest checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        streams = FileStreams(run / "streams")
        position = record(streams, groups)
        checkpoints = Checkpoints(run)
        events = launcher_events(streams)
        began = time.process_time()
        resumed = resume(streams, events, checkpoints, position)
        assert len(resumed.replayed) == OPEN
        return time.process_time() - began


def record(streams: Streams, groups: int) -> Position:
    """Writes the events of a run whose last groups are complete but not trained. Returns its checkpoint."""
    started = streams.writer("actor_events")
    for group in range(groups):
        started.append(Started(group_id=group, rollouts=GROUP_SIZE, draw=group, problem=group % 1000))
    trained = streams.writer("trainer_events")
    steps = (groups - OPEN) // IN_STEP
    for step in range(steps):
        version = step + 1
        in_step = list(range(step * IN_STEP, version * IN_STEP))
        trained.append(StepClosed(version=version, rollouts=128, tokens=10_000, lag_histogram={0: 10_000}))
        trained.append(Settled(group_ids=in_step, rollouts=len(in_step) * GROUP_SIZE, version=version))
    dropped = streams.writer("preprocessor_events")
    left_over = list(range(steps * IN_STEP, groups - OPEN))
    if left_over:
        settled = len(left_over) * GROUP_SIZE
        dropped.append(Settled(group_ids=left_over, rollouts=settled, reason="zero_advantage"))
    rollouts = streams.writer("rollouts")
    for group in range(groups - OPEN, groups):
        for member in range(GROUP_SIZE):
            rollouts.append(rollout(group, member))
    states = streams.writer("sampler_states")
    states.append(SamplerState(draws=groups, state={}))
    for writer in (started, trained, dropped, rollouts, states):
        writer.close()
    return Position(version=steps, rollouts_offset=0)
