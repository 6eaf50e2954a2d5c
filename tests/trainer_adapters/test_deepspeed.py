"""DeepSpeedTrainer beside FSDPTrainer: the same numbers from the same recorded batches; a checkpoint of one
loads in the other. What the contract itself asks of it, the kit proves (tests/conformance)."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.gradient_readout import gradients, readable_optimizer, rounding_errors
from contracts.conformance.trainer.reference import Reference
from contracts.records import MicroBatchRow, TrainingSequence
from contracts.trainer import OptimizerSpec, PackedBatch, TrainerWorker, WorkerSpec
from pipelinerl.streams.files import FileStreams
from tests.limits import HANG_S
from tests.ports import free_port
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import LENGTHS, run_ranks
from trainer_adapters.deepspeed import DeepSpeedTrainer
from trainer_adapters.fsdp import FSDPTrainer

pytestmark = pytest.mark.engines
STEPS = 20
ADAMW = OptimizerSpec(lr=1e-3, eps=1e-4, weight_decay=0.1, max_grad_norm=0.5, warmup_steps=4, decay_steps=40)
TOLERANCE = 1e-5  # of each tensor's norm
OTHER_FORMS = [("fsdp", 1), ("fsdp", 2), ("zero1", 1), ("zero1", 2), ("zero2", 2), ("zero3", 1)]
OFFLOAD = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}


def backend(name: str) -> TrainerWorker:
    if name.startswith("fsdp"):
        return FSDPTrainer(compute_dtype="bfloat16" if name.endswith("bf16") else "float32")
    stage, *options = name.split("-")
    dtype = "bfloat16" if "bf16" in options else "float32"
    config = OFFLOAD if "offload" in options else {}
    kept = "selective" if "selective" in options else False
    return DeepSpeedTrainer(
        zero_stage=int(stage[-1]), compute_dtype=dtype, activation_checkpointing=kept, config=config
    )


def started(
    name: str, port: int, model: str, optimizer: OptimizerSpec, rank: int = 0, size: int = 1
) -> TrainerWorker:
    worker = backend(name)
    worker.init_worker(
        WorkerSpec(
            model_path=model,
            optimizer=optimizer,
            rank=rank,
            world_size=size,
            master_port=port,
            timeout_s=HANG_S,
        )
    )
    return worker


def recorded(directory: Path, cut: str) -> list[MicroBatchRow]:
    """A stream of rows for two ranks, written once and read as the trainer reads it."""
    streams = FileStreams(directory / cut)
    if not streams.names():
        rows = streams.writer("rows")
        for step in range(STEPS):
            sequences = make_sequences(LENGTHS, seed=step)
            cuts = {
                "whole": [[sequences[::2], sequences[1::2]]],
                "single": [[[s], [t]] for s, t in zip(sequences[::2], sequences[1::2], strict=True)],
                "uneven": [[sequences[:1], sequences[1:6]], [[], sequences[6:7]], [sequences[7:], []]],
            }
            last = len(cuts[cut]) - 1
            for index, shares in enumerate(cuts[cut]):
                rows.append(
                    MicroBatchRow(
                        step=step,
                        index=index,
                        micro_batches=shares,
                        closes_step=index == last,
                    )
                )
        rows.close()
    return [entry.record for entry in streams.reader("rows").read(timeout_s=0)]


def shares(row: MicroBatchRow, rank: int, world_size: int) -> list[list[TrainingSequence]]:
    """One process does every rank's share."""
    return [row.micro_batches[rank]] if world_size > 1 else row.micro_batches


def take(worker: TrainerWorker, rows: list[MicroBatchRow], rank: int, world_size: int) -> tuple[float, float]:
    """A step; this rank's share of the loss, and the norm."""
    loss = 0.0
    for row in rows:
        for sequences in shares(row, rank, world_size):
            batch = PackedBatch.pack(sequences).to(worker.device)
            part = reference.objective(worker.forward(batch), batch)
            worker.backward(part)
            loss += part.item()
    return loss, worker.step().grad_norm


def steps_of(rows: list[MicroBatchRow]) -> list[list[MicroBatchRow]]:
    return [[row for row in rows if row.step == step] for step in range(STEPS)]


def weights_of(worker: TrainerWorker) -> dict[str, torch.Tensor]:
    return {name: t.cpu().clone() for name, t in worker.gather_weights() if t is not None}


# --- jobs of a rank ---------------------------------------------------------------------------


def one_step_each(rank: int, size: int, name: str, port: int, model: str, spec, start: Path, rows: Path):
    """From the same weights each time: what every cut of a step makes of them."""
    worker = started(name, port, model, spec, rank, size)
    results = {}
    for cut in ("whole", "single", "uneven"):
        worker.load(start)
        before = weights_of(worker)
        loss, norm = take(worker, steps_of(recorded(rows, cut))[0], rank, size)
        results[cut] = loss, norm, before, weights_of(worker)
    worker.close()
    return results


def twenty_steps(rank: int, size: int, name: str, port: int, model: str, rows: Path, out: Path):
    """The weights after them, and a checkpoint half-way."""
    worker = started(name, port, model, ADAMW, rank, size)
    cuts = [steps_of(recorded(rows, cut)) for cut in ("whole", "single", "uneven")]
    for step in range(STEPS):
        if step == STEPS // 2:
            saving = worker.save(out / "half")
        take(worker, cuts[step % 3][step], rank, size)
    saving.wait()
    worker.export(out / "export")
    weights = weights_of(worker)
    worker.close()
    return weights


def second_half(rank: int, size: int, name: str, port: int, model: str, rows: Path, checkpoint: Path):
    worker = started(name, port, model, ADAMW, rank, size)
    worker.load(checkpoint)
    for step in range(STEPS // 2, STEPS):
        take(worker, steps_of(recorded(rows, "whole"))[step], rank, size)
    weights = weights_of(worker)
    worker.close()
    return weights


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("rows")
    for cut in ("whole", "single", "uneven"):
        recorded(directory, cut)
    return directory


# --- tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_fsdp(models, rows, tmp_path_factory):
    """A checkpoint of the first weights, the spec that lets gradients be read, and fsdp's own step."""
    directory = tmp_path_factory.mktemp("start")
    sequences = [s for share in recorded(rows, "whole")[0].micro_batches for s in share]
    spec = readable_optimizer(Reference(models["qwen2"]), sequences)
    run_ranks(1, save_start, directory, free_port(), models["qwen2"], spec, directory / "checkpoint")
    args = (models["qwen2"], spec, directory / "checkpoint", rows)
    (results,) = run_ranks(1, one_step_each, directory, "fsdp", free_port(), *args)
    return args, results["whole"]


def save_start(rank: int, size: int, port: int, model: str, spec: OptimizerSpec, out: Path) -> None:
    worker = started("fsdp", port, model, spec)
    worker.save(out).wait()
    worker.close()


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("zero2", 1),
        ("zero3", 2),
        *(pytest.param(*form, marks=pytest.mark.long) for form in OTHER_FORMS),
    ],
)
def test_from_the_same_weights_the_same_loss_gradient_and_norm_however_a_step_is_cut(
    name, ranks, of_fsdp, tmp_path
):
    args, (loss, norm, before, after) = of_fsdp
    spec = args[1]
    expected = gradients(before, after, spec)
    results = run_ranks(ranks, one_step_each, tmp_path, name, free_port(), *args)
    for cut in ("whole", "single", "uneven"):
        losses, norms, befores, afters = zip(*(result[cut] for result in results), strict=True)
        reference.assert_close(befores[0], before, tolerance=0)
        assert sum(losses) == pytest.approx(loss, rel=TOLERANCE)
        assert norms == pytest.approx([norm] * ranks, rel=TOLERANCE)
        found = gradients(befores[0], afters[0], spec)
        misread = rounding_errors(afters[0], expected, spec)
        compare(found, expected, TOLERANCE, "gradient", "fsdp's", f"{name} {ranks} {cut}", misread)


@pytest.fixture(scope="module")
def twenty(models, rows, tmp_path_factory):
    """Weights after twenty steps, and where checkpoint and export are, by backend and ranks."""

    def run(name: str, ranks: int) -> tuple[dict[str, torch.Tensor], Path]:
        out = tmp_path_factory.mktemp(f"{name}-{ranks}")
        results = run_ranks(ranks, twenty_steps, out, name, free_port(), models["llama"], rows, out)
        return results[0], out

    return {
        "fsdp 1": run("fsdp", 1),
        "fsdp 2": run("fsdp", 2),
        "zero1 2": run("zero1", 2),
        "zero2 1": run("zero2", 1),
        "zero2-offload 2": run("zero2-offload", 2),
        "zero2-selective 2": run("zero2-selective", 2),
        "zero3 2": run("zero3", 2),
        "zero3-offload 1": run("zero3-offload", 1),
    }


@pytest.mark.long
def test_the_same_weights_after_twenty_steps(twenty):
    expected, _ = twenty["fsdp 1"]
    for weights, _ in twenty.values():
        reference.assert_close(weights, expected, TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("saved", "name", "ranks"),
    [
        ("fsdp 2", "zero3", 1),
        ("fsdp 1", "zero1", 2),
        ("zero3 2", "fsdp", 1),
        ("zero3 2", "zero3", 1),
        ("zero2 1", "zero3", 2),
        ("zero1 2", "zero2", 1),
        ("zero2 1", "fsdp", 2),
    ],
)
def test_a_checkpoint_goes_on_in_another_backend_on_another_number_of_ranks(
    twenty, models, rows, tmp_path, saved, name, ranks
):
    expected, out = twenty[saved]
    args = (models["llama"], rows, out / "half")
    results = run_ranks(ranks, second_half, tmp_path, name, free_port(), *args)
    reference.assert_close(results[0], expected, TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("exported", ["fsdp 2", "zero3 2"])
def test_the_export_of_one_loads_in_the_other(twenty, exported, tmp_path):
    weights, out = twenty[exported]
    model = AutoModelForCausalLM.from_pretrained(out / "export")
    reference.assert_close(reference.weights(model), weights, tolerance=0)
    for name in ("fsdp", "zero3"):
        loaded = run_ranks(1, first_weights, tmp_path, name, free_port(), str(out / "export"))
        reference.assert_close(loaded[0], weights, tolerance=0)


def first_weights(rank: int, size: int, name: str, port: int, model: str):
    worker = started(name, port, model, ADAMW)
    weights = weights_of(worker)
    worker.close()
    return weights


# --- bfloat16 ---------------------------------------------------------------------------------


def sums_in_float32(rank: int, size: int, name: str, port: int, model: str, spec, sequences):
    """The first weights, and those after a step: of one micro-batch a sequence, dealt out to the ranks."""
    worker = started(name, port, model, spec, rank, size)
    before = weights_of(worker)
    for sequence in sequences[rank::size]:
        batch = PackedBatch.pack([sequence])
        worker.backward(reference.objective(worker.forward(batch), batch))
    worker.step()
    after = weights_of(worker)
    worker.close()
    return before, after


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_has_float32_masters_and_reduces_in_float32_as_fsdp_does(models, tmp_path, stage):
    """Sums of bfloat16 numbers are exact in float32, and are not in bfloat16."""
    sequences = make_sequences(LENGTHS, seed=4)
    spec = readable_optimizer(Reference(models["llama"]), sequences)
    args = (models["llama"], spec, sequences)
    (before, after), _ = run_ranks(2, sums_in_float32, tmp_path, f"zero{stage}-bf16", free_port(), *args)
    reference.assert_close(before, reference.weights(reference.load(models["llama"])), tolerance=0)
    single = tmp_path / "single"
    single.mkdir()
    ((first, last),) = run_ranks(1, sums_in_float32, single, "fsdp-bf16", free_port(), *args)
    found, expected = gradients(before, after, spec), gradients(first, last, spec)
    worst = max(float((found[n] - g).norm() / g.norm()) for n, g in expected.items() if g.norm() > 0)
    assert worst < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 3])  # stage 2's optimizer is tried in float32
def test_bfloat16_goes_on_from_a_checkpoint(models, rows, tmp_path, stage):
    name, args = f"zero{stage}-bf16", (models["llama"], rows)
    weights, _ = run_ranks(2, twenty_steps, tmp_path, name, free_port(), *args, tmp_path)
    resumed = run_ranks(2, second_half, tmp_path, name, free_port(), *args, tmp_path / "half")
    assert any((tensor != tensor.bfloat16().float()).any() for tensor in weights.values())
    reference.assert_close(resumed[0], weights, tolerance=2e-3)


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
