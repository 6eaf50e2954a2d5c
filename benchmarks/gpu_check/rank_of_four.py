"""One of the four trainer ranks of `+exp=math_7b`, at its real size, on one GPU.

The other ranks do not exist (`fake_ranks`), and the weights are random. All else is a run's: the recipe's
options and objective, a full micro-batch, the `Learner`, the gathering of weights, and the checkpoint.
"""

import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu_check.fake_ranks import fake_groups
from benchmarks.gpu_check.flops import training_flops
from benchmarks.gpu_check.machine import device_name, device_of
from benchmarks.gpu_check.models import TINY, free_memory, write_config
from benchmarks.gpu_check.outcomes import FailedError, SkippedError
from benchmarks.gpu_check.trainers import started
from benchmarks.gpu_check.training import check_memory, describe_speed
from contracts.conformance.trainer.sequences import make_sequences
from contracts.records import TrainingSequence
from contracts.support.sizes import describe_bytes
from contracts.trainer import StepReport, TrainerWorker
from pipelinerl.components import instantiate
from pipelinerl.config import RunConfig
from pipelinerl.launcher.checking.gpu_memory import longest_sequence, rank_use
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.training.learner import Learner
from pipelinerl.training.ranks import Ranks

RECIPE = "+exp=math_7b"
RANKS = "benchmarks.gpu_check.fake_ranks"
STEPS = 2
DRY_LENGTHS = [64, 32]  # tokens of the packed sequences


def fsdp(dry: bool) -> list[str]:
    return _check([RECIPE, "trainer=fsdp", f"trainer._target_={RANKS}.FSDPRank"], dry)


def deepspeed(dry: bool) -> list[str]:
    return _check([RECIPE, f"trainer._target_={RANKS}.DeepSpeedRank"], dry)


def _check(settings: list[str], dry: bool) -> list[str]:
    config = compose_config(settings)
    worker = instantiate(config.trainer)
    if worker.missing:
        raise SkippedError(worker.missing)
    shape = TINY if dry else config.model.shape
    lengths = DRY_LENGTHS if dry else _lengths(config)
    spec = {"optimizer": config.updates_of_optimizer, "world_size": config.world.trainer_ranks}
    with tempfile.TemporaryDirectory() as folder, fake_groups():
        model = write_config(Path(folder) / "model", shape)
        with started(worker, model, device_of(dry), **spec):
            _forget_loading(worker)
            lines = [_held(worker)]
            seconds, reports = _learn(config, worker, make_sequences(model, lengths, seed=0))
            speed = describe_speed(training_flops(shape, lengths), sum(lengths), [seconds], device_name())
            lines += [f"the second step: {speed}"]
            lines += [_gather(worker), _save(worker, Path(folder) / "checkpoint")]
            if not dry:
                lines += [check_memory(rank_use(config, shape), *lines)]
    if any(report.skipped for report in reports):
        why = f"the fake process group of torch {torch.__version__} may leave sums unwritten"
        raise FailedError(*lines, f"a step was skipped, because its gradient is not finite: {why}")
    return lines


def _lengths(config: RunConfig) -> list[int]:
    """Returns the lengths of a full micro-batch: the recipe's longest sequence, and what remains."""
    longest = longest_sequence(config)
    return [longest, config.packing.micro_batch_tokens - longest]


def _forget_loading(worker: TrainerWorker) -> None:
    """Makes the peak of memory that of learning, gathering and saving."""
    free_memory()
    if worker.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(worker.device)


def _held(worker: TrainerWorker) -> str:
    held = sum(shard.numel() for shard in worker.shards())
    return f"the rank holds {held:,} of {_parameters(worker):,} parameters"


def _parameters(worker: TrainerWorker) -> int:
    manifest = worker.weight_manifest("bfloat16")
    return manifest.total_bytes // torch.bfloat16.itemsize


def _learn(
    config: RunConfig, worker: TrainerWorker, sequences: list[TrainingSequence]
) -> tuple[float, list[StepReport]]:
    """Makes the steps, each of one micro-batch. Returns the seconds of the last one, and all reports."""
    learner = Learner(config, worker)
    ranks = Ranks(0, config.world.trainer_ranks, config.world.rank_timeout_s)
    reports = []
    for step in range(STEPS):
        began = time.perf_counter()
        learner.accumulate(sequences, step)
        report, _ = learner.close_step(step, ranks)
        _synchronise(worker)
        seconds = time.perf_counter() - began
        reports.append(report)
    return seconds, reports


def _gather(worker: TrainerWorker) -> str:
    """Gathers the weights as for servers. Raises FailedError if they are not the manifest's."""
    began = time.perf_counter()
    gathered = sum(tensor.numel() for _, tensor in worker.gather_weights())
    _synchronise(worker)
    line = f"gathered {gathered:,} parameters in {time.perf_counter() - began:.1f} s"
    if gathered != (expected := _parameters(worker)):
        raise FailedError(line, f"expected: {expected:,}")
    return line


def _save(worker: TrainerWorker, directory: Path) -> str:
    began = time.perf_counter()
    saving = worker.save(directory)
    waited = time.perf_counter() - began
    saving.wait()
    size = sum(file.stat().st_size for file in directory.iterdir())
    seconds = time.perf_counter() - began
    return (
        f"saved {describe_bytes(size)} of shards in {seconds:.1f} s, of which training waits {waited:.1f} s"
    )


def _synchronise(worker: TrainerWorker) -> None:
    if worker.device.type == "cuda":
        torch.cuda.synchronize(worker.device)
