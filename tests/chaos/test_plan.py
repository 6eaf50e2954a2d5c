"""What a seed draws is the same every time, can be launched, and comes to every kind of fault."""

from dataclasses import replace

import pytest

from benchmarks.chaos.plan import RELAY_ACTIONS, draw_plan, settings_of
from pipelinerl.launcher.composing.compose import compose_config

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


@pytest.mark.parametrize("weights", ["relay", "shared"])
def test_other_weights_are_another_run_and_relays_have_faults_of_their_own(weights):
    faults = []
    for seed in range(25):
        plan = draw_plan(seed, 40, "scripted", STOP_S, weights=weights)
        drawn = draw_plan(seed, 40, "scripted", STOP_S).shape
        schedule = "pipeline" if (weights, drawn.schedule) == ("relay", "async") else drawn.schedule
        assert plan.shape == replace(drawn, weights=weights, schedule=schedule)
        faults += plan.faults
    targets = {fault.target for fault in faults}
    assert {"relay-0", "relay-1", "origin"} <= targets or weights == "shared"
    of_relays = [fault for fault in faults if fault.target.startswith("relay-")]
    assert {fault.action for fault in of_relays} == (set(RELAY_ACTIONS) if weights == "relay" else set())
    assert all(2 <= fault.seconds <= 10 for fault in of_relays if fault.action != "stop")


@pytest.mark.parametrize(
    ("executor", "weights"), [("local", "group"), ("ray", "group"), ("local", "relay"), ("local", "shared")]
)
@pytest.mark.parametrize("pair", ["scripted", "real"])
@pytest.mark.parametrize("seed", range(4))
def test_the_settings_of_a_plan_are_a_run(executor, weights, pair, seed):
    plan = draw_plan(seed, 1, pair, STOP_S, executor, weights)
    config = compose_config(settings_of(plan))
    assert config.weights.target.rpartition(".")[2].lower() == weights
    assert config.executor.target.lower().endswith(f"{executor}executor")
    assert config.world.servers == plan.shape.servers
    assert config.world.trainer_ranks == plan.shape.ranks
    assert config.streams.target.rpartition(".")[2].lower() == plan.shape.streams
    assert (config.reference is not None) == plan.shape.reference
    assert config.lag_limit == plan.shape.lag_limit
