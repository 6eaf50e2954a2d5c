"""The demo with each transport, on the same seeds: what it learns, and how long it takes.

With relays there are two. Half-way, one is killed for good, and the other sends wrong bytes from then on.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.relays import Relays
from benchmarks.weight_transports.served import Served
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.paths import ROOT

STEPS = 40  # from then on nearly all groups agree, and a step waits for hundreds of them
HALF = STEPS // 2
LOOKS_S = 0.5
SETTINGS = (f"max_steps={STEPS}", "stop_at=null")
DELTAS = ("weights.dtype=bfloat16", "weights.deltas=true")
CASES = {
    "`weights=group`": ("weights=group",),
    "`weights=relay`, two relays that fail half-way": ("weights=relay",),
    f"the same with `{' '.join(DELTAS)}`": ("weights=relay", *DELTAS),
    "`weights=shared`": ("weights=shared",),
}
HEAD = (
    "| | held-out success: mean (lowest) | to group's, ≤ 0.02 | wall time / group's: median, ≤ 1.1 | "
    "lost rollouts, errors of accounting | digests seen at servers, not signed |\n|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Ran:
    """One run. wall_s: seconds from the launch to the summary. unsigned: digests without a manifest."""

    success: float
    wall_s: float
    wrong: int  # rollouts lost and errors of accounting
    served: int
    unsigned: int


def rows(rounds: int) -> Iterator[str]:
    """Yields the lines of the table. In each round every case runs once, on the round's seed."""
    yield HEAD
    rounds_of = [{name: run(case, seed) for name, case in CASES.items()} for seed in range(rounds)]
    base = [each["`weights=group`"] for each in rounds_of]
    for name in CASES:
        ran = [each[name] for each in rounds_of]
        success = fmean(one.success for one in ran)
        gap = success - fmean(one.success for one in base)
        wall = median(one.wall_s / other.wall_s for one, other in zip(ran, base, strict=True))
        wrong, served, unsigned = (sum(getattr(o, n) for o in ran) for n in ("wrong", "served", "unsigned"))
        lowest = min(one.success for one in ran)
        learnt = f"{success:.3f} ({lowest:.3f}) | {gap:+.3f}"
        yield f"| {name} | {learnt} | {wall:.2f} | {wrong} | {served}, {unsigned} |"


def run(case: tuple[str, ...], seed: int) -> Ran:
    """Runs the demo. Raises RuntimeError if it does not end well; its files are then kept."""
    relays = Relays(2 if "weights=relay" in case else 0)
    memory = "/dev/shm" if "weights=shared" in case else None
    directory = Path(tempfile.mkdtemp(prefix="transport-run-"))
    with tempfile.TemporaryDirectory(dir=memory) as store, relays:
        settings = [*SETTINGS, *case, f"seed={seed}", f"run_dir={directory / 'run'}"]
        settings += [] if "weights=group" in case else [f"weights.directory={store}"]
        settings += relays.settings if "weights=relay" in case else []
        served = launch(settings, directory, Path(store), relays)
    summary = json.loads((directory / "run" / "summary.json").read_text())
    shutil.rmtree(directory)
    return Ran(
        summary["heldout_success_end"],
        summary["wall_s"],
        summary["rollouts_lost"] + len(summary["accounting_errors"]),
        len(served.digests),
        len(served.digests - served.signed),
    )


def launch(settings: list[str], directory: Path, store: Path, relays: Relays) -> Served:
    """Runs the launcher to its end, and makes the relays fail half-way. Returns what servers served."""
    token = secrets.token_hex(16)
    served = Served(directory / "run", store, token)
    with (directory / "console").open("wb") as console:
        launcher = subprocess.Popen(
            [sys.executable, "launch.py", *settings],
            cwd=ROOT,
            env=os.environ | {TOKEN_VARIABLE: token},
            stdout=console,
            stderr=console,
        )
    try:
        while launcher.poll() is None:
            served.look()
            if served.steps >= HALF and relays.count and relays.pid(0):
                relays.kill(0)
                relays.signal(1, signal.SIGUSR2)
            time.sleep(LOOKS_S)
    finally:
        launcher.terminate()
        launcher.wait()
    if launcher.returncode or (relays.count and relays.pid(0)):
        raise RuntimeError(f"{' '.join(settings)} ended with status {launcher.returncode}: see {directory}")
    return served
