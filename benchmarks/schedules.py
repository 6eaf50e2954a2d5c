"""The schedules under emulated devices: how soon so many tokens are trained, how old, and which are dropped.

python -m benchmarks.schedules [--seeds 0,1] [--only long,constant] [--out runs/schedules] [key=value ...]
python -m benchmarks.schedules --real      # the demo on the CPU, pipeline against conventional

Each run is a real one, whose server and trainer sleep instead of computing (benchmarks/emulated). Runs of one
seed have the same lengths and come one after the other. The tables are in docs/benchmarks.md.
"""

import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import fmean, median

from benchmarks.arguments import composed, names_of, new_directory, seeds
from benchmarks.predictions import predicted_tokens_per_s
from benchmarks.schedule_figures import Figures, figures_of
from contracts.support.command_line import command_parser
from pipelinerl.paths import ROOT

MEAN_TOKENS = 50
MOST_TOKENS = 500
LONG = 3 * MEAN_TOKENS  # tokens from which a response counts as long
EMULATED = (
    "inference=scripted",
    "inference.module=benchmarks.emulated.server",
    f"+inference.arguments.mean-tokens={MEAN_TOKENS}",
    "+inference.arguments.token-s=0.01",
    "+inference.arguments.token-each-s=0.0003",
    "+inference.arguments.prompt-s=0.0001",
    "+inference.arguments.apply-s=0.05",
    "trainer=scripted",
    "trainer._target_=benchmarks.emulated.trainer.EmulatedTrainer",
    "+trainer.gather_s=0.1",
    "~domain",
    "+domain._target_=benchmarks.emulated.domain.DrawnRewards",
    f"sampling.max_tokens={MOST_TOKENS}",
    "sampling.max_prompt_tokens=64",
    "batch_size=32",
    "group_size=4",
    "packing.micro_batch_tokens=512",
    "eval.problems=1",
    "eval.every=null",
    "probe.every=1000",
    "checkpoint.every=null",
)
BALANCED = ("inference.concurrency=32", "+trainer.token_s=0.0004", "max_lag=8", "max_steps=32")
SLOW_TRAINER = ("inference.concurrency=16", "+trainer.token_s=0.0016", "max_steps=24")
SHAPES = {
    "long": ("+inference.arguments.sigma=1", *BALANCED),
    "constant": ("+inference.arguments.sigma=0", *BALANCED),
    "slow_trainer": ("+inference.arguments.sigma=1", *SLOW_TRAINER),
}
SCHEDULES_OF = {"slow_trainer": ("pipeline",), "demo": ("pipeline", "conventional")}
DEMO = (
    "batch_size=128",
    "group_size=8",
    "max_steps=40",
    "eval.every=null",
    "eval.problems=16",
    "checkpoint.every=null",
)
HEAD = (
    "lengths",
    "schedule",
    "seconds to the last step",
    "trained tokens/s",
    "faster than conventional",
    "as simulated",
    "trainer idle",
    "places free",
    "lag mean, max",
    "groups dropped as stale: short, long",
    "by queueing",
    "tokens an answer: sampled, trained",
)


def main() -> None:
    parser = command_parser("benchmarks.schedules", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/schedules"))
    parser.add_argument("--seeds", type=seeds, default="0,1", help="separated by commas")
    parser.add_argument("--only", type=names_of(SHAPES), default=",".join(SHAPES), help="of these shapes")
    parser.add_argument("--real", action="store_true", help="the demo instead of emulated devices")
    parser.add_argument("settings", nargs="*", help="for every run")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Figures]] = {}
    shapes = ["demo"] if options.real else options.only
    for shape in shapes:
        for schedule in schedules_of(shape):
            composed(parser, [*settings_of(shape, schedule, options.seeds[0]), *options.settings])
    out = new_directory(parser, options.out)
    for seed, shape in product(options.seeds, shapes):
        for schedule in schedules_of(shape):
            run_dir = out / f"{shape}-{schedule}-{seed}"
            launch(*settings_of(shape, schedule, seed), f"run_dir={run_dir}", *options.settings)
            found.setdefault((shape, schedule), []).append(figures_of(run_dir, LONG))
    print(f"| {' | '.join(HEAD)} |")
    print(f"|{' --- |' * len(HEAD)}")
    for (shape, schedule), figures in found.items():
        simulated = simulated_ratio(out, shape, schedule, options.seeds)
        cells = row(figures, found.get((shape, "conventional")), simulated)
        print(f"| {' | '.join([shape, schedule, *cells])} |")


def schedules_of(shape: str) -> tuple[str, ...]:
    return SCHEDULES_OF.get(shape, ("pipeline", "async", "conventional"))


def settings_of(shape: str, schedule: str, seed: int) -> tuple[str, ...]:
    """Returns the settings of a run. `conventional` has no lag, whatever the shape allows the others."""
    lag = ("max_lag=0",) if schedule == "conventional" else ()
    of_run = (f"schedule={schedule}", *lag, f"seed={seed}")
    if shape == "demo":
        return (*DEMO, *of_run)
    return (*EMULATED, f"+inference.arguments.seed={seed}", *SHAPES[shape], *of_run)


def launch(*settings: str) -> None:
    command = [sys.executable, "launch.py", *settings]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr[-2000:]}")


def simulated_ratio(out: Path, shape: str, schedule: str, of_seeds: list[int]) -> float | None:
    """Returns the speed-up over `conventional` in simulations, with the times of its runs.

    In those runs the number of requests varies, which reveals the cost of each request.
    """
    if shape not in SHAPES or shape in SCHEDULES_OF:
        return None

    def run(schedule: str, seed: int) -> Path:
        return out / f"{shape}-{schedule}-{seed}"

    def speed(schedule: str) -> float:
        pairs = [(run(schedule, seed), run("conventional", seed)) for seed in of_seeds]
        return fmean(predicted_tokens_per_s(each, like) for each, like in pairs)

    return speed(schedule) / speed("conventional")


def row(figures: list[Figures], conventional: list[Figures] | None, simulated: float | None) -> list[str]:
    """Returns the cells of one schedule: medians over the seeds, with the range of the first."""
    seconds = [of.seconds for of in figures]

    def middle(name: str) -> float:
        return median(getattr(of, name) for of in figures)

    pairs = zip(figures, conventional or figures, strict=True)
    ratio = median(of.tokens_per_s / other.tokens_per_s for of, other in pairs)
    return [
        f"{median(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f})",
        f"{middle('tokens_per_s'):.0f}",
        f"{ratio:.2f}" if conventional else "–",
        f"{simulated:.2f}" if simulated else "–",
        f"{middle('trainer_idle'):.0%}",
        f"{middle('places_free'):.0%}",
        f"{middle('lag_mean'):.2f}, {middle('lag_max'):.0f}",
        f"{middle('stale_short'):.0%}, {middle('stale_long'):.0%}",
        f"{sum(of.stale_by_queueing for of in figures)} of {sum(of.groups for of in figures)}",
        f"{middle('sampled_length'):.1f}, {middle('trained_length'):.1f}",
    ]


if __name__ == "__main__":
    main()
