"""Rounds that fail, are missed, or are made by some islands only: no progress is lost or counts twice."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from extensions.islands.rounds import NoRounds
from tests.extensions.islands import oracle
from tests.extensions.islands.fleet import Fleet, fleet_of
from tests.extensions.islands.groups import DyingGroup
from tests.extensions.islands.test_rounds import EVERY, NESTEROV, Local, float64, same_everywhere
from tests.extensions.islands.workers import TinyWorker


def every_bit(fleet: Fleet, name: str) -> list[torch.Tensor]:
    """Returns copies of all that an island's next step depends on."""
    worker = fleet.workers[name]
    outer = fleet.trainers[name]._island.outer
    moments = [value for state in worker.optimizer.state.values() for value in state.values()]
    own = [outer.anchor] if outer.momentum is None else [outer.anchor, outer.momentum]
    return [t.detach().clone() for t in [*worker.masters, *worker.used, *moments, *own]]


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(a.equal(b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("outer", [{}, NESTEROV], ids=["mean", "nesterov"])
def test_a_round_that_is_not_committed_changes_no_bit(outer):
    fleet = fleet_of("a", "b", **outer)
    fleet.run()
    fleet.run(EVERY - 1)
    before = {name: every_bit(fleet, name) for name in ("a", "b")}
    fleet.lighthouse.denied.update(a=3, b=3)
    measures = fleet.each(lambda name: fleet.trainers[name].synchronise())
    assert len(fleet.lighthouse.meetings) == 1 + 3
    for name in ("a", "b"):
        assert (measures[name]["outer_alone"], measures[name]["outer_round"]) == (1, 1)
        assert are_equal(before[name], every_bit(fleet, name))
        assert fleet.trainers[name]._island.drift.updates == EVERY - 1


def test_after_a_missed_round_the_next_one_merges_the_whole_drift():
    fleet = fleet_of("a", "b", quantise="none")
    start = float64(fleet.anchor("a"))
    fleet.lighthouse.present = set()
    measures = fleet.run()["a"]
    assert measures["outer_alone"] == 1
    drift = fleet.anchor("a") - fleet.vector("a")
    assert measures["outer_drift_norm"] == pytest.approx(float(drift.norm()), rel=1e-5)
    fleet.lighthouse.present = {"a", "b"}
    fleet.run()
    models = [Local(seed=1).after(2 * EVERY), Local(seed=2).after(2 * EVERY)]
    expected = start - oracle.mean_drift(start, models, [8, 8])
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6


@pytest.mark.parametrize("outer", [{}, NESTEROV], ids=["mean", "nesterov"])
def test_who_missed_rounds_replays_them_and_merges_its_whole_drift(outer):
    """c is away for two rounds: it gets the others' anchor and momentum, bit for bit, and keeps its drift."""
    fleet = fleet_of("a", "b", "c", quantise="none", **outer)
    start = float64(fleet.anchor("c"))
    away = Local(seed=3).after(3 * EVERY) - start  # alone
    fleet.lighthouse.present = {"a", "b"}
    fleet.run()
    fleet.run()
    anchor = float64(fleet.anchor("a"))
    momentum = fleet.trainers["a"]._island.outer.momentum
    momentum = np.zeros_like(anchor) if momentum is None else float64(momentum)
    models = [model_after_a_round(fleet, name) for name in ("a", "b")]
    fleet.lighthouse.present = {"a", "b", "c"}
    measures = fleet.run()["c"]
    assert (measures["outer_behind"], measures["outer_islands"], measures["outer_alone"]) == (2, 3, 0)
    gradient = oracle.mean_drift(anchor, [*models, anchor + away], [EVERY, EVERY, 3 * EVERY])
    expected, momentum = oracle.nesterov(
        anchor, momentum, gradient, outer.get("outer_lr", 1), outer.get("outer_momentum", 0)
    )
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6
    if outer:
        a, c = (fleet.trainers[name]._island.outer.momentum for name in ("a", "c"))
        assert a.equal(c)


def model_after_a_round(fleet: Fleet, name: str) -> np.ndarray:
    """Returns what an island's model will be after the updates of a round, from a copy of its worker."""
    worker = fleet.workers[name]
    twin = Local(seed=worker.seed).worker
    twin.replace(worker.vector())
    twin.optimizer.load_state_dict(deepcopy(worker.optimizer.state_dict()))
    twin.steps = worker.steps
    for _ in range(EVERY):
        twin.step()
    return float64(twin.vector())


def test_who_missed_too_many_rounds_drops_its_drift(caplog):
    fleet = fleet_of("a", "c", max_behind=1)
    fleet.lighthouse.present = {"a"}
    for _ in range(2):
        fleet.run()
    fleet.lighthouse.present = {"a", "c"}
    anchor = float64(fleet.anchor("a"))
    model = model_after_a_round(fleet, "a")
    measures = fleet.run()["c"]
    assert (measures["outer_behind"], measures["outer_alone"]) == (2, 0)
    expected = anchor - oracle.mean_drift(anchor, [model], [EVERY])
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 0.02 * np.abs(anchor - model).max()
    assert "12 updates are dropped" in caplog.text


def test_a_late_joiner_takes_the_newest_round_if_the_gradients_are_no_longer_kept():
    fleet = fleet_of("a", "b", **NESTEROV)
    for _ in range(3):
        fleet.run()
    for store in fleet.rounds.values():
        store.kept.clear()
    fleet.add("late", TinyWorker(seed=7, skipped=range(4)))
    assert fleet.run()["late"]["outer_behind"] == 3
    same_everywhere(fleet)
    momenta = [trainer._island.outer.momentum for trainer in fleet.trainers.values()]
    assert momenta[0].equal(momenta[2])


@pytest.mark.parametrize("sends", [0, 3, 6])
def test_an_exchange_that_breaks_off_is_tried_again(sends):
    fleet = fleet_of("a", "b", "c", quantise="none")
    start = float64(fleet.anchor("a"))
    fleet.lighthouse.wrapped["b"] = lambda group: DyingGroup(group, sends)
    measures = fleet.run()
    models = [Local(seed=seed).after(EVERY) for seed in (1, 2, 3)]
    expected = start - oracle.mean_drift(start, models, [EVERY] * 3)
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6
    assert {each["outer_alone"] for each in measures.values()} == {0}
    assert len(fleet.lighthouse.meetings) == 2


def test_what_the_others_have_merged_does_not_count_twice():
    """b sends its drift, but does not commit the round that the others commit with it."""
    fleet = fleet_of("a", "b", quantise="none", attempts=1)
    start = float64(fleet.anchor("a"))
    fleet.lighthouse.denied["b"] = 1
    measures = fleet.run()
    assert (measures["a"]["outer_alone"], measures["b"]["outer_alone"]) == (0, 1)
    local = Local(seed=2)
    sent = local.after(EVERY)
    later = local.after(EVERY)
    anchor = float64(fleet.anchor("a"))
    expected = start - oracle.mean_drift(start, [Local(seed=1).after(EVERY), sent], [EVERY, EVERY])
    assert np.abs(anchor - expected).max() < 1e-6
    models = [model_after_a_round(fleet, "a"), anchor + later - sent]
    fleet.run()
    expected = anchor - oracle.mean_drift(anchor, models, [EVERY, EVERY])
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6


def test_what_may_have_been_merged_does_not_count_twice_though_the_gradient_is_gone():
    fleet = fleet_of("a", "b", quantise="none", attempts=1)
    fleet.lighthouse.denied["b"] = 1
    fleet.run()
    fleet.rounds["a"].kept.clear()
    anchor = float64(fleet.anchor("a"))
    later = model_after_a_round(fleet, "b") - float64(fleet.vector("b"))
    models = [model_after_a_round(fleet, "a"), anchor + later]
    fleet.run()
    expected = anchor - oracle.mean_drift(anchor, models, [EVERY, EVERY])
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6


def test_what_a_checkpoint_has_of_a_round_that_was_made_after_it_does_not_count_twice(tmp_path):
    """b is saved in the middle of a round, makes it, dies, and begins again from there."""
    fleet = fleet_of("a", "b", quantise="none")
    fleet.run(EVERY // 2)
    fleet.trainers["b"].save(tmp_path).wait()
    fleet.run(EVERY // 2)
    anchor = float64(same_everywhere(fleet))
    fleet.add("b", TinyWorker(seed=2)).load(tmp_path)
    local = Local(seed=2)
    later = -local.after(EVERY // 2) + local.after(EVERY // 2)
    models = [model_after_a_round(fleet, "a"), anchor + later]
    fleet.each(lambda name: fleet._train(name, EVERY if name == "a" else EVERY // 2))
    expected = anchor - oracle.mean_drift(anchor, models, [EVERY, EVERY // 2])
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6


def test_what_was_sent_and_not_merged_stays():
    """b's exchange fails for all, then a makes the round alone: b's first drift is still its own."""
    fleet = fleet_of("a", "b", quantise="none", attempts=1)
    fleet.lighthouse.denied.update(a=1, b=1)
    fleet.run()
    fleet.lighthouse.present = {"a"}
    fleet.run(names=["a"])
    fleet.lighthouse.present = {"a", "b"}
    anchor = float64(fleet.anchor("a"))
    start = float64(Local(seed=2).worker.vector())
    drifted = Local(seed=2).after(2 * EVERY) - start
    models = [model_after_a_round(fleet, "a"), anchor + drifted]
    fleet.run()
    expected = anchor - oracle.mean_drift(anchor, models, [EVERY, 2 * EVERY])
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6


def test_an_island_that_made_a_round_by_itself_takes_that_of_the_others():
    """a alone commits a round that b and c make again without it, so there are two anchors of round 1."""
    fleet = fleet_of("a", "b", "c", quantise="none")
    fleet.lighthouse.denied.update(b=1, c=1)
    fleet.run()
    assert fleet.lighthouse.meetings == [["a", "b", "c"], ["b", "c"]]
    anchor = float64(same_everywhere(fleet, ("b", "c")))
    drift = model_after_a_round(fleet, "a") - float64(fleet.anchor("a"))
    models = [anchor + drift, *(model_after_a_round(fleet, name) for name in ("b", "c"))]
    assert np.abs(anchor - float64(fleet.anchor("a"))).max() > 1e-3
    measures = fleet.run()
    expected = anchor - oracle.mean_drift(anchor, models, [EVERY] * 3)
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6
    assert {each["outer_alone"] for each in measures.values()} == {0}


def test_who_cannot_catch_up_trains_on_alone_and_does_not_hold_up_the_others(caplog):
    fleet = fleet_of("a", "b")
    fleet.run()
    fleet.add("c", TinyWorker(seed=7), rounds=NoRounds())
    alone = Local(seed=7)
    for round in (2, 3):
        found = fleet.run()
        assert [found[name]["outer_alone"] for name in ("a", "b", "c")] == [0, 0, 1]
        assert [found[name]["outer_round"] for name in ("a", "b", "c")] == [round, round, 0]
        assert found["a"]["outer_islands"] == 2
        assert fleet.vector("c").numpy().tolist() == alone.after(EVERY).tolist()
        same_everywhere(fleet, ("a", "b"))
    assert fleet.lighthouse.meetings[1:] == [["a", "b", "c"]] * 2
    assert "round 1 excludes c" in caplog.text
    assert "round 2 is not available: training continues alone" in caplog.text
