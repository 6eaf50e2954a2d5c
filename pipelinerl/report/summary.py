"""Reports the end of a run: `summary.json`, two tables, `reward.png` and the closing lines.

Values that the run has not recorded are null in the summary.
"""

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from contracts.records import Evaluated
from contracts.support.files import write_atomically
from pipelinerl.config import load_config
from pipelinerl.report.bottleneck import bottleneck
from pipelinerl.report.closing import closing_lines
from pipelinerl.report.evaluation_table import print_evaluations
from pipelinerl.report.one_problem import OneProblem
from pipelinerl.report.reward_plot import caption_of, draw_rewards
from pipelinerl.report.run_totals import RunTotals, read_totals
from pipelinerl.report.wall_time import Launch
from pipelinerl.streams import Streams
from pipelinerl.training.stopping import Stopping

OVERALL = ("version", "first_version", "last_version", "pinned", "success", "problems", "failed")
BY_SET = ("success", "problems", "attempts", "failed")
NOT_IN_TABLE = ("evaluations", "bottleneck_measured")
FAILED = "failed:"  # prefix of the status of a failed rollout


def report(
    run_dir: Path,
    streams: Streams,
    launch: Launch | None = None,
    verbose: bool = False,
    failed: str | None = None,
) -> dict[str, object]:
    """Prints the closing lines, writes the summary and the plot, and returns the summary.

    launch: the start and end of the launcher that calls. verbose: prints all figures, too. failed: why the
    run failed, or None.
    """
    totals = read_totals(run_dir, streams)
    summary = summary_of(totals, launch) | {"failed": failed}
    if verbose:
        print_table(summary, run_dir)
        print_evaluations(totals.evaluations)
    if totals.cut:
        print(what_is_covered(totals))
    try:
        write_atomically(run_dir / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    except OSError:
        print_table(summary, run_dir)  # so that it is not lost
        raise
    training = totals.rollouts.version_means()
    heldout = [(result.version, result.success) for result in totals.evaluations]
    if training or heldout:
        picture = run_dir / "reward.png"
        draw_rewards(picture, caption_of(run_dir, totals), training, heldout)
    is_solved = meets_stop_at(run_dir, totals.evaluations)
    problem = OneProblem(streams, model_of(run_dir))
    problem.read()
    ended = totals.accounts.ended
    print(*closing_lines(summary, run_dir, ended, is_solved, problem.change()), sep="\n")
    return summary


def model_of(run_dir: Path) -> Path:
    """Returns the directory of the run's model, or the run's own if its configuration names none."""
    has_config = (run_dir / "config.yaml").is_file()
    return Path((has_config and load_config(run_dir).model.path) or run_dir)


def summary_of(totals: RunTotals, launch: Launch | None) -> dict[str, object]:
    """Returns the summary of the totals.

    Rates are over the training phase, from the first training rollout to the trainer's last line of metrics.
    The time between a stop and a resumption is not included. `wall_s` also includes start and end.
    """
    evaluations = totals.evaluations
    rollouts = totals.rollouts
    lags = totals.lags
    lag_tokens = sum(lags.values())
    phase_s = rollouts.seconds(totals.trained_until)
    return {
        "heldout_success_start": start_of(evaluations),
        "heldout_success_end": evaluations[-1].success if evaluations else None,
        "evaluations": [described(result) for result in evaluations],
        "optimizer_steps": len(totals.steps),
        "steps_without_gradient": len(totals.without_gradient & totals.steps.keys()),
        "steps_skipped": sum(step.skipped for step in totals.steps.values()),
        "solved_at": totals.solved_at,
        "resumed": totals.resumed,
        "streams_cut": totals.cut,
        "rollouts_from_version": rollouts.first_version if "rollouts" in totals.cut else None,
        "weight_updates": totals.weight_updates,
        "updates_while_generating": len(totals.updates_while_generating),
        "sequences_multi_version": rollouts.multi_version,
        **totals.accounts.summary(),
        "rollouts_retried": rollouts.retried,
        "rollouts_out_of_time": rollouts.out_of_time,
        "rollouts_failed": {status.removeprefix(FAILED): n for status, n in sorted(rollouts.failed.items())},
        "rollouts_failed_by_infrastructure": rollouts.failed_by_infrastructure,
        "lag_mean": divide(sum(lag * tokens for lag, tokens in lags.items()), lag_tokens),
        "lag_max": max((lag for lag, tokens in lags.items() if tokens), default=None),
        "logprob_gap_mean_abs": divide(sum(totals.gaps), len(totals.gaps)),
        "logprob_gap_max_abs": totals.largest_gap,
        "generation_tokens_per_s": divide(rollouts.tokens, phase_s),
        "trained_tokens_per_s": divide(totals.trained_tokens, phase_s),
        "bottleneck": bottleneck(totals.measurements).sentence,
        "bottleneck_measured": asdict(totals.measurements) if totals.measurements else None,
        "judging_isolation": totals.judging_isolation,
        "wall_s": totals.wall_time.seconds(launch),
    }


def meets_stop_at(run_dir: Path, evaluations: list[Evaluated]) -> bool:
    """Returns True if the evaluations meet `stop_at`, so that training can resume only without it."""
    if not (run_dir / "config.yaml").is_file():
        return False
    return Stopping(load_config(run_dir).stop_at, evaluations).solved is not None


def start_of(evaluations: list[Evaluated]) -> float | None:
    """Returns the success of version 0, or None if it was not evaluated, such as after an early restart."""
    return evaluations[0].success if evaluations and evaluations[0].version == 0 else None


def described(result: Evaluated) -> dict[str, object]:
    sets = {of.name: {name: getattr(of, name) for name in BY_SET} for of in result.sets}
    return {name: getattr(result, name) for name in OVERALL} | {"sets": sets}


def what_is_covered(totals: RunTotals) -> str:
    """Returns a sentence on the values of the summary that deleted records affect."""
    since = f" since weight version {totals.rollouts.first_version}" if "rollouts" in totals.cut else ""
    return (
        f"streams.keep_bytes has deleted the oldest records of {' and '.join(totals.cut)}: the rates, and "
        f"what is counted from rollouts, are of those that are left{since}; the ledger, the steps and the "
        "evaluations are of the whole run"
    )


def print_table(summary: dict[str, object], run_dir: Path) -> None:
    table = Table(title=escape(str(run_dir)), title_justify="left", show_header=False)
    for name, value in summary.items():
        if name in NOT_IN_TABLE:
            continue
        text = "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(name, escape(text))
    Console().print(table)


def divide(amount: float, of: float | None) -> float | None:
    return amount / of if of else None
