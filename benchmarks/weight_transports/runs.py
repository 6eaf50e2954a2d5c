"""The demo with each transport, on the same seeds: what it learns, and how long it takes.

With relays there are two. Half-way, one is killed for good, and the other sends wrong bytes from then on.
"""

import json
import os
import secrets
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

STEPS = 80
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
    """Runs the demo. Raises RuntimeError if it does not end well."""
    has_relays = "weights=relay" in case
    memory = "/dev/shm" if "weights=shared" in case else None
    with tempfile.TemporaryDirectory(dir=memory) as store, Relays(2 if has_relays else 0) as relays:
        stored = [] if "weights=group" in case else [f"weights.directory={store}"]
        sources = relays.settings if has_relays else []
        return _launch([*SETTINGS, *case, *stored, *sources, f"seed={seed}"], Path(store), relays, has_relays)


def _launch(settings: list[str], store: Path, relays: Relays, has_relays: bool) -> Ran:
    run_dir, token = Path(tempfile.mkdtemp(prefix="transport-run-")) / "run", secrets.token_hex(16)
    command = [sys.executable, "launch.py", f"run_dir={run_dir}", *settings]
    served = Served(run_dir, store, token)
    output = run_dir.with_name("console")
    with output.open("wb") as console:
        launcher = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {TOKEN_VARIABLE: token}, stdout=console, stderr=console
        )
        failed = False
        while launcher.poll() is None:
            served.look()
            if has_relays and served.steps >= HALF and not failed:
                relays.kill(0)
                relays.signal(1, signal.SIGUSR2)
                failed = True
            time.sleep(LOOKS_S)
    if launcher.returncode or (has_relays and not failed):
        raise RuntimeError(f"{' '.join(settings)} ended with status {launcher.returncode}: see {output}")
    summary = json.loads((run_dir / "summary.json").read_text())
    return Ran(
        summary["heldout_success_end"],
        summary["wall_s"],
        summary["rollouts_lost"] + len(summary["accounting_errors"]),
        len(served.digests),
        len(served.digests - served.signed),
    )
