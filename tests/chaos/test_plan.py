"""What a seed draws is the same every time, can be launched, and comes to every kind of fault."""

import pytest

from benchmarks.chaos.plan import draw_plan, settings_of
from pipelinerl.launcher.compose import compose_config

STOP_S = 90.0


@pytest.mark.parametrize("pair", ["scripted", "real"])
def test_a_seed_draws_the_same_plan_every_time_and_another_seed_another(pair):
    plan = draw_plan(7, 20, pair, STOP_S)
    assert plan == draw_plan(7, 20, pair, STOP_S)
    assert plan.faults != draw_plan(8, 20, pair, STOP_S).faults


def test_the_seeds_of_a_soak_come_to_every_role_and_every_action():
    faults = [fault for seed in range(25) for fault in draw_plan(seed, 20, "scripted", STOP_S).faults]
    roles = {"server", "actor", "preprocessor", "trainer", "reference", "judging", "redis", "launcher"}
    every = {f"{action} {role}" for action in ("kill", "stop") for role in roles}
    every |= {"close port server", "corrupt server", "fill disk disk", "truncate log actor"}
    assert {fault.kind for fault in faults} == every | {"cut tail launcher"}


@pytest.mark.parametrize(
    ("executor", "weights"), [("local", "group"), ("ray", "group"), ("local", "relay"), ("local", "shared")]
)
@pytest.mark.parametrize("pair", ["scripted", "real"])
@pytest.mark.parametrize("seed", range(4))
def test_the_settings_of_a_plan_are_a_run(executor, weights, pair, seed):
    plan = draw_plan(seed, 1, pair, STOP_S, executor, weights)
    config = compose_config(settings_of(plan))
    assert config.weights.transport == weights
    assert config.executor.backend == executor
    assert config.world.servers == plan.shape.servers
    assert config.world.trainer_ranks == plan.shape.ranks
    assert config.streams.backend == plan.shape.streams
    assert (config.reference is not None) == plan.shape.reference
    assert config.lag_limit == plan.shape.lag_limit
