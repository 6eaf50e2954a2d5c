"""A step's updates: several on the same rollouts, and the optimizer's moments forgotten after it."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, WorkerSpec
from pipelinerl.errors import GaveUpError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.training.learner import Learner
from pipelinerl.training.ranks import Ranks
from tests.ports import free_port
from tests.trainer_adapters.models import make_sequences
from trainer_adapters.scripted import ScriptedTrainer

SPEC = {"model_path": "none", "optimizer": OptimizerSpec(lr=0.05)}


class Recording:
    """The step's sum of A log π, and what it was called with."""

    calls: list = []
    batches: list = []

    def __call__(self, scores, batch):
        Recording.calls.append((scores.logprobs.detach().clone(), batch.proximal_logprobs))
        Recording.batches.append(batch)
        return -(batch.advantages * scores.logprobs * batch.loss_weights).sum(), {}


@pytest.fixture
def worker():
    Recording.calls = []
    Recording.batches = []
    trainer = ScriptedTrainer()
    trainer.init_worker(WorkerSpec(**SPEC, master_port=free_port()))
    yield trainer
    trainer.close()


def sequences(seed: int) -> list[TrainingSequence]:
    made = make_sequences([6, 6], seed, vocab=97)
    return [msgspec.structs.replace(sequence, loss_mask=np.arange(6) > 1) for sequence in made]


def learner(worker, *overrides: str) -> Learner:
    objective = f"objective._target_={__name__}.Recording", "~objective.max_importance_weight"
    config = compose_config(["inference=scripted", "trainer=scripted", *objective, *overrides])
    return Learner(config, worker)


def test_later_epochs_see_the_same_rollouts_and_the_policy_that_the_step_began_with(worker):
    learning, ranks = learner(worker, "epochs=3"), Ranks(0, 1, 60)
    for seed in range(2):
        learning.accumulate(sequences(seed), step=0)
    report, statistics = learning.close_step(0, ranks)
    assert not report.skipped and statistics["trained_tokens"] == 16
    first = [logprobs for logprobs, _ in Recording.calls[:2]]
    assert len(Recording.calls) == 6 and [p for _, p in Recording.calls[:2]] == [None, None]
    for epoch in (1, 2):
        for began, (logprobs, proximal) in zip(
            first, Recording.calls[2 * epoch : 2 * epoch + 2], strict=True
        ):
            assert torch.equal(proximal, began) and not torch.allclose(logprobs, began)
    learning.accumulate(sequences(7), step=1)
    learning.close_step(1, ranks)
    assert len(Recording.calls) == 9  # nothing of the first step is left


def test_later_epochs_see_the_values_that_the_step_began_with(worker, monkeypatch):
    """Without a value head, twice the log-probability stands for its prediction."""
    forward = worker.forward

    def with_values(*args, **kwargs):
        scores = forward(*args, **kwargs)
        return replace(scores, values=2 * scores.logprobs)

    monkeypatch.setattr(worker, "forward", with_values)
    learning = learner(worker, "epochs=3")
    learning.accumulate(sequences(0), step=0)
    learning.close_step(0, Ranks(0, 1, 60))
    first, *later = Recording.batches
    assert first.start_values is None
    for batch in later:
        assert torch.equal(batch.start_values, 2 * Recording.calls[0][0])
        assert not batch.start_values.requires_grad


def test_a_step_has_the_measures_of_all_its_updates(worker, monkeypatch):
    step, numbers = worker.step, iter(range(2))

    def measured():
        number = next(numbers)
        return replace(step(), measures={"number": number, f"of_{number}": 1.0})

    monkeypatch.setattr(worker, "step", measured)
    learning = learner(worker, "epochs=2")
    learning.accumulate(sequences(0), step=0)
    report, _ = learning.close_step(0, Ranks(0, 1, 60))
    assert report.measures == {"number": 1, "of_0": 1.0, "of_1": 1.0}


@pytest.mark.parametrize("name", ["loss", "step_s", "wait_s"])
def test_a_measure_of_the_trainer_cannot_replace_a_metric_of_every_step(worker, monkeypatch, name):
    step = worker.step
    monkeypatch.setattr(worker, "step", lambda: replace(step(), measures={name: 1.0}))
    learning = learner(worker)
    learning.accumulate(sequences(0), step=0)
    with pytest.raises(ValueError, match=f"the trainer's measures cannot be named {name}"):
        learning.close_step(0, Ranks(0, 1, 60))


def test_weights_never_change_otherwise_between_two_epochs(worker):
    worker.period = 6
    assert learner(worker, "epochs=3") and learner(worker)
    with pytest.raises(GaveUpError, match="a period of 6 updates, which is no multiple of epochs=4"):
        learner(worker, "epochs=4")


def test_moments_are_forgotten_after_the_steps_that_are_asked_for(worker):
    learning = learner(worker, "reset_optimizer_every=2")
    moments = []
    for step in range(4):
        learning.accumulate(sequences(step), step)
        learning.close_step(step, Ranks(0, 1, 60))
        moments.append(len(worker._optimizer.state) > 0)
    assert moments == [True, False, True, False]


def test_every_epoch_knows_its_step_and_the_declared_token_fields(worker):
    learning = learner(worker, "epochs=2", "+token_fields.mark={dtype: int32, fill: 0}")
    for step in (4, 5):
        marks = np.arange(6, dtype=np.int32) + step
        marked = [msgspec.structs.replace(s, token_fields={"mark": marks}) for s in sequences(step)]
        learning.accumulate(marked, step)
        learning.accumulate([], step)
        learning.close_step(step, Ranks(0, 1, 60))
    assert [batch.step for batch in Recording.batches] == [4] * 4 + [5] * 4
    for batch in Recording.batches:
        marks = [*range(batch.step, batch.step + 6)] * batch.num_sequences
        assert batch.token_fields["mark"].tolist() == marks
        assert batch.token_fields["mark"].dtype == torch.int32
