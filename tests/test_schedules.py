"""The emulated devices, and the figures of a run that they made."""

import asyncio

import pytest

from benchmarks.emulated.lengths import Lengths
from benchmarks.emulated.server import EmulatedEngine
from benchmarks.schedule_figures import age_at_the_end
from benchmarks.schedules import SHAPES, schedules_of, settings_of
from contracts.inference import SamplingParameters, TokenDelta
from contracts.records import VersionSpan, WeightsPublished
from pipelinerl.launcher.compose import compose_config
from tests.builders import completion, rollout

MOST = 40


@pytest.mark.parametrize("shape", [*SHAPES, "demo"])
def test_the_settings_of_every_schedule_are_a_run(shape):
    for schedule in schedules_of(shape):
        config = compose_config([*settings_of(shape, schedule, 3)])
        assert (config.schedule, config.seed) == (schedule, 3)
        assert config.lag_limit == 0 if schedule == "conventional" else config.lag_limit > 0


def test_an_emulated_server_samples_as_many_tokens_as_are_drawn():
    lengths = Lengths(30, 1)

    async def answers() -> list[list[TokenDelta]]:
        engine = EmulatedEngine(lengths, token_s=1e-4, token_s_each=0.0, prompt_s=0.0, apply_s=0.0)
        await engine.start(0)
        return await asyncio.gather(*(deltas_of(engine) for _ in range(8)))

    found = asyncio.run(answers())
    drawn = [lengths.of(number) for number in range(8)]
    sampled = [sum(len(delta.token_ids) for delta in deltas) for deltas in found]
    assert sampled == [min(length, MOST) for length in drawn]
    reasons = [deltas[-1].finish_reason for deltas in found]
    assert reasons == ["stop" if length <= MOST else "length" for length in drawn]
    assert set(reasons) == {"stop", "length"}


async def deltas_of(engine: EmulatedEngine) -> list[TokenDelta]:
    return [delta async for delta in engine.generate([1], SamplingParameters(max_tokens=MOST))]


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
