"""Compiled decoder layers compute what others do, and packs of other lengths compile nothing anew."""

import pytest
import torch

from tests.trainer_adapters import reference
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.test_fsdp import gradients
from tests.trainer_adapters.workers import LENGTHS, accumulate, pack, started
from trainer_adapters.fsdp import FSDPTrainer


def compiled_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.long
@pytest.mark.engines
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_layers_that_are_not_compiled(models, checkpointing):
    packs = [make_sequences(lengths) for lengths in (LENGTHS, LENGTHS[:3], [61, 1, 30, 3, 90])]
    trainer = FSDPTrainer(compile_layers=True, activation_checkpointing=checkpointing)
    torch.compiler.reset()  # what another test compiled
    before = compiled_graphs()
    with started(trainer, models["qwen2"]) as worker:
        accumulate(worker, packs[:1])
        worker.forward(pack(packs[0]), grad=False)
        compiled = compiled_graphs()
        accumulate(worker, packs[1:])
        assert compiled_graphs() == compiled
        found = gradients(worker)
    assert compiled > before
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        accumulate(worker, packs)
        reference.assert_close(found, gradients(worker))
