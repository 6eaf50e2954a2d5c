"""Tokens that the preprocessor turns into rows in a second of CPU time, over a recorded `rollouts` stream.

python -m benchmarks.preprocess [--runs 5] [--rollouts 16384] [--against CHECKOUT] [key=value ...]

The preprocessor of a run reads, forms and writes every step of the recording, in a process of its own and
without a trainer. Its start is not counted. Runs of each length, and of another checkout, take turns.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.arguments import checkout, composed, of_checkout, positive_int, refuse
from benchmarks.ratios import ratio_of_medians
from contracts.records import ActorStopped, Completion, Rollout, TrainingDone, VersionSpan
from contracts.support.command_line import command_parser
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT
from pipelinerl.streams.files import FileStreams

LENGTHS = (256, 1024)  # tokens of a sequence, of which an eighth are the prompt
SETTINGS = ["batch_size=256", "group_size=8", "packing.micro_batch_tokens=16384"]
VOCABULARY = 32_000


def main() -> None:
    parser = command_parser("benchmarks.preprocess", __doc__)
    parser.add_argument("--runs", type=positive_int, default=5)
    parser.add_argument("--rollouts", type=positive_int, default=16_384)
    parser.add_argument(
        "--against", type=checkout, help="another checkout, whose preprocessor is measured too"
    )
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    checkouts = {"here": ROOT} | ({"there": options.against} if options.against else {})
    settings = [*SETTINGS, *options.settings]
    config = composed(parser, settings)
    if options.rollouts < config.batch_size:
        refuse(parser, f"--rollouts must be {config.batch_size} or more, the rollouts of a step")
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, directory in checkouts.items():
                compose_there(directory, Path(folder) / f"{name}.yaml", settings)
        except PlanError as error:
            refuse(parser, f"{error}")
        recordings = {length: Path(folder) / str(length) for length in LENGTHS}
        for length, recording in recordings.items():
            record(FileStreams(recording), config, length, options.rollouts)
        found: dict[tuple[int, str], list[dict]] = {}
        for number in range(options.runs):
            for length, recording in recordings.items():
                for name, directory in checkouts.items():
                    run = Path(folder) / f"run-{length}-{name}-{number}"
                    prepare(run, recording, Path(folder) / f"{name}.yaml")
                    measured = measure(directory, run, options.rollouts // config.batch_size)
                    found.setdefault((length, name), []).append(measured)
                    shutil.rmtree(run)
    report(found, options.rollouts)


def record(streams: FileStreams, config: RunConfig, length: int, rollouts: int) -> None:
    """Writes the rollouts of an actor that is one step ahead of its servers' last update."""
    generator = np.random.default_rng(length)
    writer = streams.writer("rollouts")
    for index in range(rollouts):
        step = index // config.batch_size
        writer.append(recorded_rollout(generator, index, config.group_size, step, length))
    writer.close()


def recorded_rollout(
    generator: np.random.Generator, index: int, group_size: int, step: int, length: int
) -> Rollout:
    prompt = length // 8
    tokens = length - prompt
    group = index // group_size
    completion = Completion(
        prompt_token_ids=generator.integers(VOCABULARY, size=prompt, dtype=np.int32),
        token_ids=generator.integers(VOCABULARY, size=tokens, dtype=np.int32),
        logprobs=-generator.random(tokens, dtype=np.float32),
        spans=[VersionSpan(max(step - 1, 0), 0, tokens // 2), VersionSpan(step, tokens // 2, tokens)],
        temperature=1.0,
        finish_reason="stop",
        server="http://127.0.0.1:8000",
        began=1.0,
        ended=2.0,
    )
    success = float(index % 2)
    return Rollout(
        run="recorded",
        rollout_id=f"{group}-{index % group_size}",
        group_id=group,
        problem_id=f"train-{group}",
        domain="recorded",
        draw=group,
        completions=[completion],
        reward=success,
        metrics={"success": success, "length": float(tokens)},
        started_at=1.0,
        finished_at=2.0,
    )


def compose_there(directory: Path, file: Path, settings: list[str]) -> None:
    """Lets a checkout compose the configuration, because its keys may differ. Raises PlanError."""
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "compose_alone.py"), str(file), *settings]
    environment = of_checkout(directory)
    child = subprocess.run(command, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True)
    if child.returncode:
        raise PlanError(f"the checkout {directory} composes no run: {child.stderr.strip().splitlines()[-1]}")


def prepare(run: Path, recording: Path, config: Path) -> None:
    """Makes a run directory with the recorded stream."""
    (run / "streams").mkdir(parents=True)
    (run / "streams" / "rollouts").symlink_to(recording / "rollouts")
    shutil.copy(config, run / "config.yaml")


def measure(directory: Path, run: Path, steps: int) -> dict:
    """Returns `cpu_s` and `peak_mib` of a preprocessor that forms all steps."""
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "preprocessor_alone.py"), str(run)]
    process = subprocess.Popen(command, env=of_checkout(directory), stdout=subprocess.PIPE, text=True)
    while process.poll() is None and formed(run) < steps:
        time.sleep(0.05)
    streams = FileStreams(run / "streams")
    streams.writer("actor_events").append(ActorStopped())
    streams.writer("trainer_events").append(TrainingDone(version=steps))
    said, _ = process.communicate()
    if process.returncode:
        sys.exit(f"the preprocessor of {directory} ended with status {process.returncode}")
    return json.loads(said)


def formed(run: Path) -> int:
    """Returns the number of steps that the preprocessor has closed."""
    return max((line["step"] for line in read_metrics(metrics_path(run, "preprocessor"))), default=0)


def report(found: dict[tuple[int, str], list[dict]], rollouts: int) -> None:
    print("| tokens of a sequence | checkout | M tokens per CPU second | peak memory, MiB |")
    print("| ---: | --- | ---: | ---: |")
    for (length, name), runs in found.items():
        rates = [rollouts * length / 1e6 / run["cpu_s"] for run in runs]
        peaks = [run["peak_mib"] for run in runs]
        print(f"| {length} | {name} | {spread(rates, 2)} | {spread(peaks, 0)} |")
    for length in LENGTHS:
        if (length, "there") in found:
            there = [run["cpu_s"] for run in found[length, "there"]]
            here = [run["cpu_s"] for run in found[length, "here"]]
            print(f"{length} tokens: CPU seconds there / here: {ratio_of_medians(there, here)}")


def spread(values: list[float], digits: int) -> str:
    """Returns the median and the range."""
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
