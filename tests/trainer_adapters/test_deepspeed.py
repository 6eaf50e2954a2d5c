"""What DeepSpeedTrainer does beyond the contract, which the kit tries on it (tests/conformance).

A checkpoint of it goes on in FSDPTrainer, and one of FSDPTrainer in it; in bfloat16 it sums in float32.
"""

from pathlib import Path

import pytest

from contracts.conformance.trainer.gradient_readout import gradients, readable_optimizer
from contracts.conformance.trainer.reference import Reference
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, TrainerWorker
from tests.ports import free_port
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import (
    LENGTHS,
    OPTIMIZER,
    accumulate,
    backend,
    run_ranks,
    started,
    weights_of,
)
from trainer_adapters.deepspeed import DeepSpeedTrainer

pytestmark = pytest.mark.engines
STEPS = 4


def take(worker: TrainerWorker, sequences: list[TrainingSequence], rank: int, size: int) -> None:
    """Makes a step of one micro-batch a sequence, dealt out to the ranks."""
    accumulate(worker, [[sequence] for sequence in sequences[rank::size]])
    worker.step()


# --- jobs of a rank ---------------------------------------------------------------------------


def learn(rank: int, size: int, name: str, port: int, model: str, out: Path) -> reference.Tensors:
    """Returns the weights after some steps, with a checkpoint half-way."""
    with started(backend(name), model, rank, size, port, OPTIMIZER) as worker:
        for step in range(STEPS):
            if step == STEPS // 2:
                worker.save(out / "half").wait()
            take(worker, make_sequences(LENGTHS, seed=step), rank, size)
        return weights_of(worker)


def go_on(rank: int, size: int, name: str, port: int, model: str, checkpoint: Path) -> reference.Tensors:
    with started(backend(name), model, rank, size, port, OPTIMIZER) as worker:
        worker.load(checkpoint)
        for step in range(STEPS // 2, STEPS):
            take(worker, make_sequences(LENGTHS, seed=step), rank, size)
        return weights_of(worker)


def around_a_step(
    rank: int, size: int, name: str, port: int, model: str, spec: OptimizerSpec
) -> tuple[reference.Tensors, reference.Tensors]:
    """Returns the first weights, and those after a step."""
    with started(backend(name), model, rank, size, port, spec) as worker:
        before = weights_of(worker)
        take(worker, make_sequences(LENGTHS, seed=4), rank, size)
        return before, weights_of(worker)


# --- tests ------------------------------------------------------------------------------------


OTHERS = [
    ("fsdp", 2, "zero3", 1),
    ("fsdp", 1, "zero1", 2),
    ("zero3", 2, "fsdp", 1),
    ("zero3", 2, "zero3", 1),
    ("zero2", 1, "zero3", 2),
    ("zero1", 2, "zero2", 1),
    ("zero1-bf16", 2, "zero1-bf16", 2),
    ("zero3-bf16", 2, "zero3-bf16", 2),
    ("fsdp-lora", 2, "zero3-lora", 2),
    ("zero3-lora", 2, "fsdp-lora", 2),
]


@pytest.mark.parametrize(
    ("saving", "ranks", "loading", "then"),
    [
        ("fsdp-lora", 2, "fsdp-lora", 1),
        *(pytest.param(*given, marks=pytest.mark.long) for given in OTHERS),
    ],
)
def test_a_checkpoint_goes_on_in_another_backend_on_another_number_of_ranks(
    models, tmp_path, saving, ranks, loading, then
):
    expected = run_ranks(ranks, learn, tmp_path, saving, free_port(), models["llama"], tmp_path)
    given = (loading, free_port(), models["llama"], tmp_path / "half")
    tolerance = 2e-3 if "bf16" in saving else 1e-5
    reference.assert_close(run_ranks(then, go_on, tmp_path, *given)[0], expected[0], tolerance)


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_has_float32_masters_and_reduces_in_float32_as_fsdp_does(models, tmp_path, stage):
    """Sums of bfloat16 numbers are exact in float32, and are not in bfloat16."""
    spec = readable_optimizer(Reference(models["llama"]), make_sequences(LENGTHS, seed=4))
    given = (models["llama"], spec)
    (before, after), _ = run_ranks(2, around_a_step, tmp_path, f"zero{stage}-bf16", free_port(), *given)
    reference.assert_close(before, Reference(models["llama"]).weights(), tolerance=0)
    ((first, last),) = run_ranks(1, around_a_step, tmp_path, "fsdp-bf16", free_port(), *given)
    found = gradients(before, after, spec)
    expected = gradients(first, last, spec)
    worst = max(float((found[n] - g).norm() / g.norm()) for n, g in expected.items() if g.norm() > 0)
    assert worst < 1e-6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"zero_stage": 0}, "zero_stage must be 1, 2 or 3, not 0"),
        ({"config": {"fp16": {"enabled": True}}}, "config.fp16 cannot be set: compute_dtype decides"),
        ({"config": {"gradient_clipping": 1}}, "optimizer.max_grad_norm decides"),
        ({"config": {"zero_optimization": {"stage": 3}}}, "zero_stage decides"),
        ({"config": {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}}, "not nvme"),
        ({"config": {"communication_data_type": "bf16"}}, "summed over ranks in float32"),
        ({"compute_dtype": "float16"}, "compute_dtype must be float32 or bfloat16"),
        (
            {"zero_stage": 3, "activation_checkpointing": "selective"},
            "activation_checkpointing=selective cannot be set with zero_stage=3",
        ),
    ],
)
def test_options_that_are_decided_elsewhere_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        DeepSpeedTrainer(**options)
