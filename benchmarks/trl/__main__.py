"""This project against TRL's GRPOTrainer on the demo: samples per second, and seconds to a success of 0.9.

python -m benchmarks.trl --python .venv-trl/bin/python [--runs 3] [--steps 60] [key=value ...]

Both train the demo's model on the demo's sums with the same batch, learning rate and number of steps, and
take turns. The environment of TRL is made once:

    python3.11 -m venv .venv-trl && .venv-trl/bin/pip install trl==1.16.0 torch==2.13.0

Success is that of the sampled rollouts, averaged over five batches. Time begins when the model is loaded and,
here, the servers have it. --tail gives answers lengths with a long tail, on another demo model.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import composed, positive_int, refuse, whole_from
from benchmarks.ratios import ratio_of_medians
from benchmarks.trl import ours
from benchmarks.trl.curves import WARM_UP, Curve
from contracts.support.command_line import command_parser
from pipelinerl.components import build_domain, build_model_maker
from pipelinerl.config import RunConfig
from pipelinerl.launcher.composing.compose import compose_config

GRPO = Path(__file__).parent / "grpo.py"
SUCCESS = 0.9
PROBLEMS = 4096
STEP = ["batch_size=128", "group_size=8"]
TAIL = ["model=thinking", "domain=thinking_sums", "sampling.max_tokens=20"]
HEAD = f"| system | samples/s | seconds to {SUCCESS} | CPU ms a sample | success of the last batch |"


def main() -> None:
    """Runs both systems in turn, and prints the table."""
    options = _options()
    curves: dict[str, list[Curve]] = {"TRL": [], "ours": []}
    for number in range(options.runs):
        for name in ("TRL", "ours") if number % 2 else ("ours", "TRL"):
            with tempfile.TemporaryDirectory() as folder:
                seeded = [*options.settings, f"seed={number}"]
                curve = (
                    of_trl(options, seeded, Path(folder))
                    if name == "TRL"
                    else ours.run(Path(folder) / "run", seeded)
                )
            curves[name].append(curve)
            print(f"{name}: {' | '.join(_cells([curve]))}", flush=True)
    print(HEAD, "|---" * 5 + "|", sep="\n")
    for name, found in curves.items():
        print(f"| {name} | {' | '.join(_cells(found))} |")
    print(f"CPU ms a sample, ours: {_by_process(curves['ours'])}")
    speeds = [[curve.samples_per_s for curve in curves[name]] for name in ("ours", "TRL")]
    waits = [[curve.seconds_to(SUCCESS) for curve in curves[name]] for name in ("TRL", "ours")]
    print(f"samples/s, ours / TRL: {ratio_of_medians(*speeds)}")
    if np.isfinite(waits).all():
        print(f"seconds to {SUCCESS}, TRL / ours: {ratio_of_medians(*waits)}")


def of_trl(options: argparse.Namespace, settings: list[str], folder: Path) -> Curve:
    """Runs TRL with the values that these settings have for this project."""
    config = compose_config([*settings, *ours.SETTINGS])
    given = {
        "model": str(build_model_maker(config).directory),
        "problems": problems(config),
        "batch_size": config.batch_size,
        "group_size": config.group_size,
        "max_tokens": config.sampling.max_tokens,
        "steps": config.max_steps,
        "lr": config.optimizer.lr,
        "warmup_steps": config.optimizer.warmup_steps,
        "betas": config.optimizer.betas,
        "seed": config.seed,
        "threads": options.threads,
        "more": dict(options.trl),
        "directory": str(folder / "output"),
        "out": str(folder / "batches.jsonl"),
    }
    path = folder / "settings.json"
    path.write_text(json.dumps(given))
    subprocess.run([options.python, GRPO, path], check=True, stdout=subprocess.DEVNULL)
    first, *batches, _ = map(json.loads, (folder / "batches.jsonl").read_text().splitlines())
    cost = batches[-1]["cpu_s"] - batches[WARM_UP - 1]["cpu_s"]
    successes = [(batch["at"], float(np.mean(batch["rewards"]))) for batch in batches]
    return Curve(first["began"], successes, config.batch_size, {"TRL": cost})


def problems(config: RunConfig) -> list[dict[str, Any]]:
    """Returns the first training problems of the run's domain, in the form of TRL's data set."""
    domain = build_domain(config)
    found = [domain.train_problem(index) for index in range(PROBLEMS)]
    return [{"prompt": problem.messages, "answer": problem.data["answer"]} for problem in found]


def _cells(curves: list[Curve]) -> list[str]:
    """Returns the medians, with their ranges."""
    return [
        _with_range([curve.samples_per_s for curve in curves], ".0f"),
        _with_range([curve.seconds_to(SUCCESS) for curve in curves], ".1f"),
        _with_range([curve.cpu_ms_per_sample for curve in curves], ".2f"),
        _with_range([curve.batches[-1][1] for curve in curves], ".2f"),
    ]


def _by_process(curves: list[Curve]) -> str:
    """Returns the median of each process."""
    costs = [curve.cpu_ms_by_process for curve in curves]
    return ", ".join(f"{name} {np.median([cost.get(name, 0.0) for cost in costs]):.2f}" for name in costs[0])


def _with_range(values: list[float], form: str) -> str:
    return f"{np.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _options() -> argparse.Namespace:
    parser = command_parser("benchmarks.trl", __doc__)
    parser.add_argument("--python", required=True, help="of the environment that has TRL")
    parser.add_argument("--runs", type=positive_int, default=3)
    parser.add_argument("--steps", type=whole_from(WARM_UP + 1), default=60)
    parser.add_argument("--threads", type=positive_int, default=2, help="of torch in TRL's process")
    parser.add_argument(
        "--trl", type=_field, action="append", default=[], help="a field of GRPOConfig, NAME=JSON"
    )
    parser.add_argument("--tail", action="store_true", help="answers of long-tailed lengths")
    parser.add_argument(
        "settings", nargs="*", help="of this project's run, and of TRL's where both have them"
    )
    options = parser.parse_args()
    if shutil.which(options.python) is None:
        refuse(parser, f"--python {options.python} is no program; make the environment as --help says")
    steps = [*STEP, f"max_steps={options.steps}"]
    options.settings = [*steps, *(TAIL if options.tail else []), *options.settings]
    composed(parser, [*options.settings, *ours.SETTINGS])
    return options


def _field(text: str) -> tuple[str, Any]:
    """Parses the name and the value of a field."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be NAME=JSON, like beta=0.1, not {text!r}") from None


if __name__ == "__main__":
    main()
