"""Rounds of several islands, each against a second computation in float64 from what the inner workers did."""

import numpy as np
import pytest
import torch

from contracts.trainer import WorkerSpec
from tests.extensions.islands import oracle
from tests.extensions.islands.fleet import Fleet, fleet_of
from tests.extensions.islands.workers import ELEMENTS, OPTIMIZER, TinyWorker

EVERY = 4
NAMES = ("a", "b", "c", "d", "e")
NESTEROV = {"outer_lr": 0.7, "outer_momentum": 0.9}


class Local:
    """The same trainer without islands: what an island's model is before a round."""

    def __init__(self, **options: object):
        self.worker = TinyWorker(**options)
        self.worker.init_worker(WorkerSpec(model_path="", optimizer=OPTIMIZER))

    def after(self, updates: int) -> np.ndarray:
        for _ in range(updates):
            self.worker.step()
        return float64(self.worker.vector())

    def replace(self, vector: torch.Tensor) -> None:
        self.worker.replace(vector)


def float64(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy().astype(np.float64)


def same_everywhere(fleet: Fleet, names: tuple[str, ...] = ()) -> torch.Tensor:
    """Returns the anchor that all islands have, which their weights are, those in use too."""
    names = names or tuple(fleet.trainers)
    for name in names:
        assert fleet.anchor(name).equal(fleet.anchor(names[0])), name
        assert fleet.vector(name).equal(fleet.anchor(name)), name
        used = [tensor.reshape(-1) for _, tensor in fleet.trainers[name].gather_weights()]
        assert torch.cat(used).equal(fleet.anchor(name)), name
    return fleet.anchor(names[0])


@pytest.mark.parametrize("outer", [{}, NESTEROV], ids=["mean", "nesterov"])
@pytest.mark.parametrize("quantise", ["none", "blocks"])
@pytest.mark.parametrize("islands", [1, 2, 3, 5])
def test_rounds_make_the_weights_of_the_oracle(islands, quantise, outer):
    names = NAMES[:islands]
    fleet = fleet_of(*names, quantise=quantise, **outer)
    locals_ = [Local(seed=seed) for seed in range(1, islands + 1)]
    momentum = np.zeros(ELEMENTS)
    for _ in range(3):
        before = float64(fleet.anchor("a"))
        models = [local.after(EVERY) for local in locals_]
        fleet.run()
        merged = same_everywhere(fleet)
        gradient = oracle.mean_drift(before, models, [EVERY] * islands)
        expected, momentum = oracle.nesterov(
            before, momentum, gradient, outer.get("outer_lr", 1), outer.get("outer_momentum", 0)
        )
        # Coding number t has an error of at most t times the largest drift / 254; their mean is taken.
        coding = (islands + 1) / 2 * max(np.abs(before - model).max() for model in models) / 254
        bound = coding * (3 if outer else 1) if quantise == "blocks" else 1e-6  # momentum keeps errors
        assert np.abs(float64(merged) - expected).max() < bound
        if quantise == "blocks" and (islands > 1 or outer):
            assert not np.abs(float64(merged) - expected).max() < 1e-6  # it is coded
        for local in locals_:
            local.replace(merged)


def test_each_drift_weighs_as_its_updates_and_skipped_ones_do_not_count():
    fleet = Fleet(quantise="none")
    fleet.add("a", TinyWorker(seed=1))
    fleet.add("b", TinyWorker(seed=2, skipped=(0, 2, 3)))
    before = float64(fleet.anchor("a"))
    fleet.run()
    models = [Local(seed=1).after(EVERY), Local(seed=2, skipped=(0, 2, 3)).after(EVERY)]
    gradient = oracle.mean_drift(before, models, [4, 1])
    assert np.abs(float64(same_everywhere(fleet)) - (before - gradient)).max() < 1e-6


def test_a_round_of_skipped_updates_alone_moves_nothing_and_counts():
    fleet = Fleet(**NESTEROV)
    fleet.add("a", TinyWorker(seed=1, skipped=range(4, 8)))
    fleet.add("b", TinyWorker(seed=2, skipped=range(4, 8)))
    fleet.run()
    anchor = same_everywhere(fleet)
    momentum = fleet.trainers["a"]._island.outer.momentum.clone()
    measures = fleet.run()["a"]
    assert measures["outer_round"] == 2 and measures["outer_alone"] == 0
    assert same_everywhere(fleet).equal(anchor)
    assert fleet.trainers["a"]._island.outer.momentum.equal(momentum)


class Replica(TinyWorker):
    """A rank that holds nothing of its own, as the scripted trainer's other ranks."""

    def shards(self) -> list[torch.Tensor]:
        return []


def test_a_rank_without_elements_makes_the_rounds_of_its_island():
    fleet = Fleet(**NESTEROV)
    for name in ("a", "b"):
        fleet.add(name, Replica(seed=1))
    for round in (1, 2):
        measures = fleet.run()["a"]
        assert (measures["outer_round"], measures["outer_islands"]) == (round, 2)
    assert measures["outer_drift_norm"] == 0
    assert fleet.trainers["a"].period == EVERY


def test_weights_that_are_not_finite_are_left_out_and_replaced(caplog):
    fleet = fleet_of("a", "b", quantise="none")
    before = float64(fleet.anchor("a"))
    fleet.run(EVERY - 1)
    fleet.workers["b"].masters[1].detach()[7] = torch.nan
    fleet.run(1)
    expected = before - oracle.mean_drift(before, [Local(seed=1).after(EVERY)], [EVERY])
    assert np.abs(float64(same_everywhere(fleet)) - expected).max() < 1e-6
    assert "drifted by nan" in caplog.text


def test_what_a_round_measures():
    fleet = fleet_of("a", "b", "c")
    before = fleet.anchor("a")
    first = fleet.run()["b"]
    drift = before - torch.from_numpy(Local(seed=2).after(EVERY).astype(np.float32))
    assert first["inner"] == 1
    assert (first["outer_round"], first["outer_islands"], first["outer_alone"]) == (1, 3, 0)
    assert first["outer_behind"] == 0
    assert first["outer_drift_norm"] == pytest.approx(float(drift.norm()), rel=1e-5)
    moved = before - same_everywhere(fleet)
    cosine = float(torch.nn.functional.cosine_similarity(drift, moved, dim=0))
    assert first["outer_cosine"] == pytest.approx(cosine, abs=1e-3) and 0.1 < cosine < 0.9
    assert ELEMENTS < first["outer_bytes"] < 4 * ELEMENTS
    assert 0 < first["outer_wait_seconds"] < first["outer_seconds"]
