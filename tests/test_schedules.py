"""The emulated devices, and the figures of a run that they made."""

import pytest

from benchmarks.schedule_figures import age_at_the_end
from benchmarks.schedules import SHAPES, schedules_of, settings_of
from contracts.records import VersionSpan, WeightsPublished
from pipelinerl.launcher.composing.compose import compose_config
from tests.builders import completion, rollout


@pytest.mark.parametrize("shape", [*SHAPES, "demo"])
def test_the_settings_of_every_schedule_are_a_run(shape):
    for schedule in schedules_of(shape):
        config = compose_config([*settings_of(shape, schedule, 3)])
        assert (config.schedule, config.seed) == (schedule, 3)
        assert config.lag_limit == 0 if schedule == "conventional" else config.lag_limit > 0


def test_a_group_is_as_old_as_its_oldest_token_when_its_last_answer_ends():
    old = completion([1], [2, 3, 4], spans=[VersionSpan(3, 0, 1), VersionSpan(4, 1, 3)])
    young = completion([1], [2], version=4)
    group = [
        rollout(0, 0, finished_at=9.0, completions=[old]),
        rollout(0, 1, finished_at=5.0, completions=[young]),
    ]
    assert age_at_the_end(group, [published(version, at=version + 2.0) for version in range(3, 9)]) == 7 - 3


def published(version: int, at: float) -> WeightsPublished:
    return WeightsPublished(run="", version=version, servers=[], seconds=0, bytes=0, paused_s=0, at=at)
