"""A trainer around FSDP that meets nobody is FSDP: the kit holds, and weights have the same bits."""

import pytest

from contracts.conformance.trainer.kit import check_trainer
from tests.conformance.kept import assert_kept
from tests.extensions.islands.wrapped import AloneAfterEveryUpdate, WithoutRounds
from tests.trainer_adapters.models import make_model
from tests.trainer_adapters.workers import started, train
from trainer_adapters.fsdp import FSDPTrainer

GUARANTEES = ["T1", "T2", "T3", "T4", "T5", "T6", "T7"]
WRAPPERS = [WithoutRounds, AloneAfterEveryUpdate]
KEPT = {WithoutRounds: GUARANTEES, AloneAfterEveryUpdate: [*GUARANTEES, "T10"]}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_weights_are_those_of_the_inner_trainer_bit_for_bit(wrapper, tmp_path):
    model = make_model(tmp_path, "qwen2")
    weights = []
    for make in (FSDPTrainer, wrapper):
        with started(make(), model) as worker:
            reports = train(worker, range(4))
            weights.append({name: tensor.clone() for name, tensor in worker.gather_weights()})
    assert weights[0].keys() == weights[1].keys()
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())
    rounds = [report.measures.get("outer_round") for report in reports]
    assert rounds == ([1, 2, 3, 4] if wrapper is AloneAfterEveryUpdate else [None] * 4)


@pytest.mark.long
@pytest.mark.engines
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_guarantees_of_trainers_hold_on_two_ranks(wrapper):
    verdicts = check_trainer(f"{wrapper.__module__}.{wrapper.__qualname__}", ranks=2, only=KEPT[wrapper])
    assert [verdict.guarantee.code for verdict in verdicts] == KEPT[wrapper]
    assert_kept(verdicts)
