"""Runs the demo with volunteers, three honest and three that cheat, over two relays and TLS on loopback.

    make nginx && python -m benchmarks.volunteers --out DIR

Each volunteer is a process with a server of its own. It prints what was accepted and refused, what the audit
costs, and the same run with trusted servers. Then a trusted server draws every accepted completion again.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.volunteers.machines import (
    Certificate,
    NginxRelays,
    ended,
    gateway_metrics,
    joined,
    started,
    wait_for,
)
from benchmarks.volunteers.redraw import redraw
from contracts.support.command_line import command_parser
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.registry import Registry

HONEST = 3
CHEATS = ("best_of", "stale", "edited")
START_S = 120.0


def main() -> None:
    parser = command_parser("benchmarks.volunteers", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs; it must not exist")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--trusted", action="store_true", help="one trusted server beside the gateway")
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    summary = run_with_volunteers(args.out, args.steps, args.trusted)
    report(args.out, summary)
    compare(args.out, args.steps, summary)


def run_with_volunteers(out: Path, steps: int, trusted: bool) -> dict:
    certificate = Certificate(out)
    with NginxRelays(out, certificate, 2) as relays:
        launch = started(out, certificate, relays, steps, trusted)
        wait_for(out / "state" / "gateway.json", launch, START_S)
        volunteers = [joined(out, certificate, f"honest-{number}") for number in range(HONEST)]
        volunteers += [joined(out, certificate, cheat, cheat) for cheat in CHEATS]
        metrics = {}
        while launch.poll() is None:
            metrics = gateway_metrics(out / "run") or metrics
            time.sleep(1)
        for volunteer in volunteers:
            ended(volunteer)
    summary = json.loads((out / "run" / "summary.json").read_text())
    return summary | {"gateway": metrics}


def report(out: Path, summary: dict) -> None:
    database = Database(out / "state", create=False)
    print("| volunteer | state | tasks | completions | why |\n|---|---|---|---|---|")
    for each in Registry(database).every():
        print(f"| {each.label} | {each.state} | {each.tasks} | {each.completions} | {each.reason} |")
    print(f"\nledger: {ledger.verify(database)} entries, verified")
    alike, other, unknown = redraw(out / "run", database)
    print(
        f"drawn again by a trusted server: {alike} alike, {other} otherwise, {unknown} of no recorded prompt"
    )
    for name in ("heldout_success_end", "rollouts_lost", "accounting_errors", "lag_mean", "lag_max"):
        print(f"{name}: {summary[name]}")
    print(f"logprob_gap_max_abs: {summary['logprob_gap_max_abs']}")
    wall = summary["wall_s"]
    rows = database.rows("SELECT sum(tasks) AS tasks, sum(completions) AS completions FROM volunteers")[0]
    gateway = summary["gateway"]
    print(
        f"tasks a second: {rows['tasks'] / wall:.1f}; completions a second: {rows['completions'] / wall:.0f}"
    )
    print(f"share of time in the audit: {gateway['volunteers_audit_seconds_total'] / wall:.1%}")
    quantiles = [gateway[f'volunteers_answer_seconds{{quantile="{q}"}}'] for q in ("0.5", "0.99")]
    print(f"from upload to answer: p50 {1e3 * quantiles[0]:.0f} ms, p99 {1e3 * quantiles[1]:.0f} ms")
    uploaded = gateway["volunteers_uploaded_bytes_total"]
    print(f"bytes of an upload a completion: {uploaded / rows['completions']:.0f}")


def compare(out: Path, steps: int, summary: dict) -> None:
    """Runs the same with as many trusted servers, and prints both times of a step."""
    command = [sys.executable, "launch.py", f"run_dir={out / 'trusted'}", "weights=relay"]
    command += [f"world.servers={HONEST}", f"max_steps={steps}"]
    with open(out / "trusted.log", "w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)
    trusted = json.loads((out / "trusted" / "summary.json").read_text())
    for name, each in (("volunteers", summary), ("trusted servers", trusted)):
        steps_done = each["optimizer_steps"]
        print(f"{name}: {steps_done} steps, {each['wall_s'] / steps_done:.2f} s a step")


if __name__ == "__main__":
    main()
