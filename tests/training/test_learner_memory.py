"""The peak memory of a learner's micro-batch, whose entropies are a metric or a term of the loss."""

import pytest
import torch

from contracts.conformance.trainer.guarantees.t7_memory import peak_bytes
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.training.learner import Learner
from tests.trainer_adapters.models import make_model, make_sequences
from tests.trainer_adapters.workers import started
from trainer_adapters.fsdp import FSDPTrainer

VOCAB, CHUNK, LENGTH, TOKENS = 20_000, 16, 16, 256
LOGITS = TOKENS * VOCAB * 4  # bytes
BONUS = "regularisers=[{_target_: pipelinerl.objectives.entropy.EntropyBonus, coefficient: 0.01}]"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("overrides", [[], [BONUS]], ids=["metric", "term"])
def test_twice_the_tokens_need_no_more_logits(tmp_path, overrides):
    model = make_model(tmp_path / "wide", "llama", VOCAB)
    config = compose_config(["inference=scripted", "trainer=fsdp", *overrides])
    with started(FSDPTrainer(logits_chunk=CHUNK), model) as worker:
        learner = Learner(config, worker)

        def peak(tokens: int) -> int:
            sequences = make_sequences([LENGTH] * (tokens // LENGTH), vocab=VOCAB)
            return peak_bytes("cpu", lambda: learner.accumulate(sequences, step=0))

        peak(LENGTH)  # gradients are there from now on
        few, many = peak(TOKENS), peak(2 * TOKENS)
    assert few > CHUNK * VOCAB * 4  # a chunk was seen
    assert many - few < 0.2 * LOGITS
