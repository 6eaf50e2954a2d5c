"""Metrics: one file of JSON lines per process, `RUN_DIR/metrics/<process>.jsonl`.

A line is `{"time": unix seconds, "step": n, <name>: number or null, ...}`. The process that writes it chooses
the names, and a reader takes those that it knows. A number that is not finite is null.

    trainer       step = optimizer steps closed. At a step: loss, grad_norm, learning_rate, ess,
                  ratio_max_abs_log, lag_mean, lag_max, trained_tokens, trained_tokens_per_s; the
                  objective's own sums, per token; alarm_<name>: 1 when a warning sign begins;
                  step_s, and of those seconds wait_s, learn_s, optimizer_s, quiesce_s, publish_s,
                  probe_s and save_s: see `pipelinerl.spans`.
                  At a publication: weight_version, publish_seconds, publish_paused_s, publish_bytes,
                  servers, and publish_<phase>_s of open, gather, send and confirm. At a probe:
                  logprob_gap_mean_abs, logprob_gap_max_abs; probe_unanswered: requests without a token of
                  that version by the time when the weights had to change.
    actor         step = live weight version. Of the rollouts that finished since the line before:
                  reward_mean, reward_<component>, success_rate, success_<domain> where there are several,
                  length_mean, length_max (sampled tokens), truncated_share, generation_tokens_per_s. Of the
                  time since then, places_s seconds: places_busy (of the places for requests),
                  blocked_<word> (a free place was not taken, by `Admission.blocked_by`),
                  outside_requests and judged_share (of the rollouts that had begun, those without a
                  request, and those that waited for a judgement). in_flight, rollouts_finished.
                  Every ten seconds: in_flight, of
                  evaluations too; rollouts_under_way; rollouts_finished and, of held-out problems,
                  attempts_finished since the process began. At an evaluation, with step = the
                  version that it began with: heldout_success, heldout_success_<set> where there are several,
                  heldout_failed, and the versions that took part: heldout_first_version,
                  heldout_last_version.
    judging       step = answers judged. Every few seconds: waiting, answers; busy_share of the workers' time;
                  restarts of the process that they come from. By verifier: seconds_<name>_p50 and _p99 of a
                  judgement, queue_s_<name>_p99 before it; undecided_<why>_<name> since the start.
    preprocessor  step = step formed. Since the start: dropped_<reason>: groups, and masked_<reason>:
                  rollouts of others, left out of the loss; zero_advantage_solved, _hopeless: groups
                  without a signal that all members solved, or none; groups; sampled_tokens, useful_tokens
                  (in the loss) and useful_share; reference_s: seconds of scoring, summed over rows.
    run           step = optimizer steps closed. What the last steps measure (`pipelinerl.report`), and
                  bottleneck_<finding>: 1 for the one that was found, 0 for the others.
"""

import io
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

from contracts.support.files import append_whole, lacks_room

log = logging.getLogger(__name__)


def metrics_path(run_dir: Path, process: str) -> Path:
    return run_dir / "metrics" / f"{process}.jsonl"


class LineFile:
    """Appends lines to a file, each handed to the operating system at once.

    Those that cannot be written are left out, which is said once: no process ends for them.
    """

    def __init__(self, path: Path, what: str):
        """`what` names the lines where they are said to be left out."""
        self._path = path
        self._what = what
        self._file: io.FileIO | None = None
        self._is_failing = False

    def append(self, line: str) -> None:
        """Appends one line."""
        try:
            if self._file is None:
                self._file = self._opened()
            append_whole(self._file, line.encode() + b"\n", os.fstat(self._file.fileno()).st_size)
        except OSError as error:
            if not self._is_failing:
                why = "the disk is full" if lacks_room(error) else str(error)
                log.warning("%s are left out of %s: %s", self._what, self._path, why)
            self._is_failing = True
        else:
            self._is_failing = False

    def _opened(self) -> io.FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("ab", buffering=0)
        _cut_torn_line(self._path)
        return file

    def close(self) -> None:
        if self._file:
            self._file.close()


class MetricsWriter:
    """Writes the metrics of one process."""

    def __init__(self, run_dir: str | Path, process: str):
        self._lines = LineFile(metrics_path(Path(run_dir), process), "metrics")

    def write(self, step: int, **values: float) -> None:
        """Writes numbers of any kind that `float` takes, one-element tensors included."""
        numbers = {name: _finite(value) for name, value in values.items()}
        self._lines.append(json.dumps({"time": time.time(), "step": step, **numbers}, allow_nan=False))

    def close(self) -> None:
        self._lines.close()


class MetricsTail:
    """Reads a metrics file as it grows: each call gives the lines that were completed since the last.

    position: the end, in bytes, of the line that was given last.
    """

    def __init__(self, path: Path, from_end: bool = False, begin: int = 0):
        self._path = path
        self.position = path.stat().st_size if from_end and path.exists() else begin

    def read(self) -> Iterator[dict]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.position += len(line)
                if (numbers := _parsed(line)) is not None:
                    yield numbers


def read_metrics(path: Path) -> Iterator[dict]:
    """The lines of a metrics file, without a torn last one; none when there is no file."""
    return MetricsTail(path).read()


def _parsed(line: bytes) -> dict | None:
    """What a line says; None for what a loss of power has left of one."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _finite(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _cut_torn_line(path: Path) -> None:
    """A process that was killed may have left half a line, which the next would be glued to."""
    with path.open("rb+") as file:
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)
