"""The four ways from long to short answers of Kimi k1.5, on the demo's model that thinks, and a table.

    python -m benchmarks.long2short [--out runs/long2short] [--seeds 0,1,2] [key=value ...]

For each seed, RL without a length reward makes the long model. Each way begins with it. Every model then
answers 512 held-out problems, 4 times each. It prints a table of success, with its standard error over
problems, and of the sampled tokens of an answer.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from benchmarks.servers import started
from contracts.records import Rollout
from contracts.support.command_line import command_parser
from pipelinerl.components import build_domain
from pipelinerl.domains.base import Problem, Wrapped
from pipelinerl.launcher.compose import compose_config
from pipelinerl.paths import ROOT
from pipelinerl.tools.attempts import Attempts

THINKING = ("domain=thinking_sums", "sampling.max_tokens=20")
ON_A_FILE = ("domain@domain.domain=thinking_sums", "sampling.max_tokens=20", "model.demo=thinking")
SERVER = (sys.executable, "-m", "inference_adapters.transformers")
PROBLEMS = 512
ATTEMPTS = 4
HEAD = ("model", "success, by seed", "tokens an answer, by seed", "tokens / long", "success − long")


class HeldOut(Wrapped):
    """A domain whose training problems are the held-out ones of another."""

    def train_problem(self, index: int) -> Problem:
        return self._domain.heldout_problem(index)


class Measured(NamedTuple):
    success: float
    error: float  # standard error of success, over problems
    tokens: float  # mean of an answer


def measure(model: Path, problems: int, attempts: int) -> Measured:
    """Returns the success and the length of a model's answers to held-out problems."""
    config = compose_config([*THINKING, f"model.path={model}"])
    made: dict[int, list[Rollout]] = defaultdict(list)
    asked = Attempts("measured", problems, attempts, lambda index, rollout: made[index].append(rollout))
    with started(list(SERVER), str(model), os.environ) as url:
        asyncio.run(asked.make(url, config, HeldOut(build_domain(config))))
    by_problem = [fmean(rollout.success or 0.0 for rollout in made[i]) for i in range(problems)]
    lengths = [rollout.sampled_tokens for rollout in itertools.chain(*made.values())]
    return Measured(fmean(by_problem), stdev(by_problem) / problems**0.5, fmean(lengths))


def run(run_dir: Path, *settings: str) -> Path:
    """Runs the launcher and returns the model that it exported."""
    launcher = [sys.executable, "launch.py", *settings, f"run_dir={run_dir}"]
    subprocess.run(launcher, cwd=ROOT, check=True)
    return run_dir / "checkpoints" / "final"


def tool(name: str, *arguments: object) -> None:
    command = [sys.executable, "-m", f"pipelinerl.tools.{name}", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, check=True)


def models_of(seed: int, out: Path, settings: Sequence[str]) -> dict[str, Path]:
    """Returns the long model and what each way makes of it."""
    common = (f"seed={seed}", *settings)
    long = run(out / "long", "+exp=kimi_k15", "rewards=[]", *common)
    start = f"model.path={long}"
    short, pairs = out / "short.jsonl", out / "pairs.jsonl"
    with started(list(SERVER), str(long), os.environ) as url:
        tool("shortest", "--url", url, "--out", short, "--pairs", pairs, *THINKING, start, f"seed={seed}")
    by_rl = run(out / "rl", "+exp=kimi_long2short", start, *common)
    merged = out / "merged"
    tool("merge", long, by_rl, "--out", merged)
    return {
        "long": long,
        "merging of long and RL's": merged,
        "shortest rejection sampling": run(
            out / "sft", "+exp=sft", f"domain.path={short}", *ON_A_FILE, start, *common
        ),
        "DPO": run(out / "dpo", "+exp=dpo", f"domain.path={pairs}", *ON_A_FILE, start, *common),
        "RL": by_rl,
    }


def row(name: str, found: Sequence[Measured], long: Sequence[Measured]) -> list[str]:
    pairs = list(zip(found, long, strict=True))
    return [
        name,
        ", ".join(f"{m.success:.3f} ± {m.error:.3f}" for m in found),
        ", ".join(f"{m.tokens:.1f}" for m in found),
        ", ".join(f"{m.tokens / before.tokens:.2f}" for m, before in pairs),
        ", ".join(f"{m.success - before.success:+.3f}" for m, before in pairs),
    ]


def main() -> None:
    parser = command_parser("benchmarks.long2short", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/long2short"))
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    parser.add_argument("settings", nargs="*", help="for every run")
    options = parser.parse_args()
    out = (options.out / time.strftime("%Y%m%d-%H%M%S")).resolve()
    out.mkdir(parents=True)
    found: dict[str, list[Measured]] = defaultdict(list)
    for seed in options.seeds.split(","):
        (out / seed).mkdir()
        for name, model in models_of(int(seed), out / seed, options.settings).items():
            found[name].append(measure(model, PROBLEMS, ATTEMPTS))
            (out / "measured.json").write_text(json.dumps(found, indent=2))
    rows = [HEAD, ["---"] * len(HEAD), *(row(name, of, found["long"]) for name, of in found.items())]
    print("".join(f"| {' | '.join(cells)} |\n" for cells in rows), end="")


if __name__ == "__main__":
    main()
