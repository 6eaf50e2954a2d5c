"""A saved and loaded island continues bit for bit: at a round, inside one, and after a failed one."""

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contracts.trainer import WorkerSpec
from extensions.islands import saves
from extensions.islands.diloco import DiLoCoTrainer
from tests.extensions.islands.fleet import Fleet
from tests.extensions.islands.test_missed_rounds import are_equal, every_bit
from tests.extensions.islands.test_rounds import EVERY, NESTEROV
from tests.extensions.islands.workers import ELEMENTS, OPTIMIZER, TinyWorker

NAMES = ("a", "b")


def fleet_of_two(**options: object) -> Fleet:
    fleet = Fleet(**NESTEROV | options)
    for seed, name in enumerate(NAMES, 1):
        fleet.add(name, TinyWorker(seed=seed))
    return fleet


def save(fleet: Fleet, directory: Path) -> None:
    for name in NAMES:
        fleet.trainers[name].save(directory / name).wait()


def load(fleet: Fleet, directory: Path) -> None:
    for name in NAMES:
        fleet.trainers[name].load(directory / name)


def assert_same(one: Fleet, other: Fleet) -> None:
    for name in NAMES:
        assert are_equal(every_bit(one, name), every_bit(other, name))
        ours, theirs = (fleet.trainers[name]._island for fleet in (one, other))
        assert ours.drift.updates == theirs.drift.updates
        assert (ours.outer.round, ours.outer.lineage) == (theirs.outer.round, theirs.outer.lineage)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("updates", [EVERY, EVERY + 3, 2 * EVERY + 1])
def test_a_loaded_island_continues_bit_for_bit(tmp_path, updates, fresh):
    fleet = fleet_of_two()
    fleet.run(updates)
    save(fleet, tmp_path)
    fleet.run(2 * EVERY)  # changes what is being written, if a save does not copy or wait
    loaded = fleet_of_two()
    if not fresh:
        loaded.run(EVERY + 1)
    load(loaded, tmp_path)
    loaded.run(2 * EVERY)
    assert_same(fleet, loaded)


def test_a_round_waits_until_the_state_before_it_is_written(tmp_path, monkeypatch):
    write, wait_ended = saves._write, saves.OuterSaves.wait_ended
    is_waited_for = threading.Event()

    def write_late(*arguments: object) -> None:
        is_waited_for.wait()
        write(*arguments)

    def wait_for_writing(of: saves.OuterSaves) -> None:
        if of._written:
            is_waited_for.set()
        wait_ended(of)

    monkeypatch.setattr(saves, "_write", write_late)
    monkeypatch.setattr(saves.OuterSaves, "wait_ended", wait_for_writing)
    fleet = fleet_of_two()
    anchor = fleet.anchor("a")
    handle = fleet.trainers["a"].save(tmp_path)
    fleet.run()
    handle.wait()
    assert load_file(tmp_path / "outer-0.safetensors")["anchor"].equal(anchor)
    assert not fleet.anchor("a").equal(anchor)


def test_what_was_sent_in_a_failed_round_is_saved(tmp_path):
    """b restarts after a round that only a committed, with b's drift: it must not count twice."""
    fleet = fleet_of_two(attempts=1)
    fleet.lighthouse.denied["b"] = 1
    fleet.run()
    fleet.run(1)
    save(fleet, tmp_path)
    loaded = fleet_of_two(attempts=1)
    load(loaded, tmp_path)
    for name in NAMES:
        loaded.rounds[name].kept = fleet.rounds[name].kept
    assert loaded.trainers["b"]._island.drift.sent.updates == EVERY
    fleet.run(EVERY - 1)
    loaded.run(EVERY - 1)
    assert_same(fleet, loaded)


def test_the_state_of_another_model_is_refused_and_changes_nothing(tmp_path):
    fleet = fleet_of_two()
    save(fleet, tmp_path)
    trainer = fleet.trainers["a"]
    trainer._island.outer.anchor = torch.zeros(ELEMENTS + 1)
    trainer.save(tmp_path / "a").wait()
    fleet = fleet_of_two()
    fleet.run(EVERY + 1)
    before = every_bit(fleet, "a")
    with pytest.raises(ValueError, match="outer state of another model"):
        fleet.trainers["a"].load(tmp_path / "a")
    assert are_equal(before, every_bit(fleet, "a"))


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"\x10" + bytes(7) + b"{}" + b" " * 14])
def test_an_outer_state_that_is_broken_is_refused(tmp_path, data):
    fleet = fleet_of_two()
    save(fleet, tmp_path)
    (tmp_path / "a" / "outer-0.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="a broken one"):
        fleet.trainers["a"].load(tmp_path / "a")


def test_without_an_outer_state_the_loaded_weights_are_the_anchor_of_round_0(tmp_path, caplog):
    fleet = fleet_of_two()
    fleet.run(EVERY + 1)
    weights = fleet.vector("a")
    save(fleet, tmp_path)
    (tmp_path / "a" / "outer-0.safetensors").unlink()
    loaded = fleet_of_two()
    loaded.run()
    loaded.trainers["a"].load(tmp_path / "a")
    assert loaded.anchor("a").equal(weights) and loaded.vector("a").equal(weights)
    assert loaded.trainers["a"]._island.outer.round == 0
    assert not loaded.trainers["a"]._island.outer.momentum.any()
    assert "no outer state of 1 ranks" in caplog.text


def test_without_rounds_a_checkpoint_is_the_inner_trainer_s(tmp_path):
    trainers = [DiLoCoTrainer(inner=TinyWorker(seed=1), every=every) for every in (None, None, 2)]
    for trainer in trainers:
        trainer.init_worker(WorkerSpec(model_path="", optimizer=OPTIMIZER))
    trainers[0].step()
    trainers[0].save(tmp_path).wait()
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    for trainer in trainers[1:]:
        trainer.load(tmp_path)
        assert trainer._inner.vector().equal(trainers[0]._inner.vector())


def test_close_waits_for_the_writing_leaves_and_closes_the_inner_trainer(tmp_path):
    fleet = fleet_of_two()
    fleet.run(1)
    fleet.lighthouse.training = {"a", "b"}
    fleet.trainers["a"].save(tmp_path)
    fleet.trainers["a"].close()
    assert (tmp_path / "outer-0.safetensors").exists()
    assert fleet.lighthouse.training == {"b"}
    assert fleet.workers["a"].closed
