"""What FSDPTrainer does beyond the contract, which the kit tries on it (tests/conformance)."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.conformance.trainer.reference import Reference
from contracts.trainer import OptimizerSpec
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import VOCAB, make_model, make_sequences
from tests.trainer_adapters.workers import LENGTHS, pack, started, train
from trainer_adapters.fsdp import FSDPTrainer, full
from trainer_adapters.learning_rate import learning_rate


def gradients(worker: FSDPTrainer) -> reference.Tensors:
    return {name: full(p.grad).clone() for name, p in worker._model.named_parameters()}


def test_bfloat16_compute_keeps_float32_scores_gradients_and_weights(models):
    sequences = make_sequences(LENGTHS)
    expected = Reference(models["llama"]).scores(sequences)
    with started(FSDPTrainer(compute_dtype="bfloat16"), models["llama"]) as worker:
        scores = worker.forward(pack(sequences))
        worker.backward(scores.logprobs.sum())
        dtypes = {gradient.dtype for gradient in gradients(worker).values()}
        worker.step()
        dtypes |= {tensor.dtype for _, tensor in worker.gather_weights()}
    assert dtypes == {torch.float32}
    error = (scores.logprobs - expected.logprobs).abs()
    assert scores.logprobs.dtype == torch.float32
    assert 1e-4 < error.mean() < 0.1


def test_learning_rate_schedule():
    constant = OptimizerSpec(lr=2.0)
    assert [learning_rate(constant, k) for k in (0, 1000)] == [2.0, 2.0]
    decaying = OptimizerSpec(lr=2.0, warmup_steps=2, decay_steps=4)
    assert [learning_rate(decaying, k) for k in range(8)] == [1.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0]


def test_one_rank_gathers_without_a_copy(models):
    with started(FSDPTrainer(), models["llama"]) as worker:
        own = {name: full(p).data_ptr() for name, p in worker._model.named_parameters()}
        assert {name: tensor.data_ptr() for name, tensor in worker.gather_weights()} == own


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.6, "top_p": 0.9}, {"do_sample": True, "top_k": 7}]
)
def test_an_export_has_the_generation_config_of_its_base(tmp_path, sampling):
    given = {"eos_token_id": [VOCAB - 1, 7], "pad_token_id": 5, "bos_token_id": 3, **sampling}
    base = make_model(tmp_path / "base", "qwen2")
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(given))
    with started(FSDPTrainer(), base) as worker:
        worker.export(tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {name: exported.get(name) for name in given} == given
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert (loaded.eos_token_id, loaded.pad_token_id) == ([VOCAB - 1, 7], 5)


def test_random_numbers_go_on_from_a_checkpoint(models, tmp_path):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        torch.rand(1)  # moves the generator on from its seed
        worker.save(tmp_path / "step").wait()
        drawn = torch.rand(1)
        worker.load(tmp_path / "step")
        assert torch.rand(1) == drawn


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond some kilobytes; to Python that is an OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_interrupted_save_leaves_the_former_checkpoint(models, tmp_path):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        worker.save(tmp_path / "step").wait()
        whole = {name: tensor.clone() for name, tensor in worker.gather_weights()}
        train(worker, range(1))
        with pytest.raises(OSError, match="could not be written"), full_disk():
            worker.save(tmp_path / "step").wait()
        worker.load(tmp_path / "step")
        reference.assert_close(dict(worker.gather_weights()), whole, tolerance=0)


@pytest.mark.parametrize(
    "options",
    [
        {"compute_dtype": "float16"},
        {"logits_chunk": 0},
        {"fp32_head": "yes"},
        {"logits_chunk": 1.5},
        {"value_head": 1},
        {"activation_checkpointing": "some"},
        {"activation_checkpointing": 1},
        {"compile_layers": "yes"},
        {"activation_checkpointing": "selective", "compile_layers": True},
    ],
)
def test_bad_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        FSDPTrainer(**options)
