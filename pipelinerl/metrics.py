"""Metrics: one file of JSON lines per process, `RUN_DIR/metrics/<process>.jsonl`.

A line is `{"time": unix seconds, "step": n, <name>: number or null, ...}`. The writing process chooses the
names, and readers ignore names that they do not know. A number that is not finite is written as null.

    trainer       step = optimizer steps closed. At a step: loss, grad_norm, learning_rate, skipped (1 or 0;
                  tokens of a skipped step are not among trained_tokens), ess,
                  ratio_max_abs_log, lag_mean, lag_max, trained_tokens, trained_tokens_per_s; the
                  objective's own sums, per token; the trainer's own measures; alarm_<name>: 1 when a
                  warning sign begins;
                  step_s and its parts wait_s, learn_s, optimizer_s, quiesce_s, publish_s, probe_s and
                  save_s: see `pipelinerl.spans`.
                  At a publication: weight_version, publish_seconds, publish_paused_s, publish_bytes,
                  servers, and publish_<phase>_s for open, gather, send and confirm. At a probe:
                  logprob_gap_mean_abs, logprob_gap_max_abs; probe_unanswered: requests without a token of
                  that version when the weights had to change; probe_skipped: with relays, servers that
                  did not serve exactly that version by then.
                  With relays, at a publication: pack_s, the time until the version before was in the
                  store; pack_failures, versions that a full disk did not take; servers_behind, how many
                  versions the slowest server was behind.
    actor         step = live weight version. For the rollouts that finished since the previous line:
                  reward_mean, reward_<component>, success_rate, success_<domain> if there are several,
                  length_mean, length_max (sampled tokens), truncated_share, generation_tokens_per_s. For
                  the time since then, places_s seconds: places_busy, the share of the places for requests
                  in use; blocked_<word>, the share of the time in which a free place was not taken, for
                  each word of `BlockedBy`. Shares of the rollouts under way: outside_requests
                  (without a request), judged_share (waiting for a judgement). Also in_flight,
                  rollouts_finished.
                  Every ten seconds: in_flight, including evaluations; rollouts_under_way;
                  rollouts_finished, and attempts_finished at held-out problems, since the process began.
                  At an evaluation, with step = the version at its beginning: heldout_success,
                  heldout_success_<set> if there are several, heldout_failed, and the range of versions
                  that sampled: heldout_first_version, heldout_last_version.
    judging       step = answers judged. Every few seconds: waiting, answers; busy_share of the workers' time;
                  restarts of the template process. By verifier: seconds_<name>_p50 and _p99 of a
                  judgement, queue_s_<name>_p99 before it; undecided_<why>_<name> since the start.
    preprocessor  step = step formed. Since the start: dropped_<reason>, groups; masked_<reason>, rollouts of
                  other groups left out of the loss; zero_advantage_solved and _hopeless, groups with equal
                  rewards that all members solved, or none; groups; sampled_tokens, useful_tokens
                  (in the loss) and useful_share; reference_s: seconds of scoring, summed over rows;
                  reference_version: weight version that scored the last row.
    run           step = optimizer steps closed. Measurements over the last steps (`pipelinerl.report`), and
                  bottleneck_<finding>: 1 for the finding, 0 for the others.
"""

import io
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from contracts.support.files import append_whole, is_disk_full

log = logging.getLogger(__name__)


class BlockedBy(StrEnum):
    """The reason why the actor starts no group although a server could take a request."""

    SERVERS = "servers"  # there is no server
    WEIGHTS = "weights"  # no server has weights that may be used
    GATE = "gate"  # the trainer waits until no request is in flight (`schedule: async`)
    JUDGING = "judging"  # too many rollouts wait for a judgement
    LAG = "lag"  # another group could exceed the lag limit
    BEHIND = "behind"  # another group could exceed it, because a server serves an older version
    QUEUE = "queue"  # enough rollouts wait in front of the trainer


def metrics_path(run_dir: Path, process: str) -> Path:
    return run_dir / "metrics" / f"{process}.jsonl"


class LineFile:
    """A file of appended lines, each passed to the operating system at once.

    Lines that cannot be written are dropped, with one message. The process continues.
    """

    def __init__(self, path: Path, what: str):
        """`what` names the lines in the message about dropped lines."""
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
                why = "the disk is full" if is_disk_full(error) else str(error)
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
    """A writer of the metrics of one process."""

    def __init__(self, run_dir: str | Path, process: str):
        self._lines = LineFile(metrics_path(Path(run_dir), process), "metrics")

    def write(self, step: int, **values: float) -> None:
        """Writes one line. Values may be anything that `float` accepts, such as one-element tensors."""
        numbers = {name: _finite(value) for name, value in values.items()}
        self._lines.append(json.dumps({"time": time.time(), "step": step, **numbers}, allow_nan=False))

    def close(self) -> None:
        self._lines.close()


class MetricsTail:
    """A reader of a growing metrics file. Each read yields the lines completed since the last read.

    position: the end, in bytes, of the line that was yielded last.
    """

    def __init__(self, path: Path, from_end: bool = False, begin: int = 0):
        self._path = path
        self.position = path.stat().st_size if from_end and path.exists() else begin

    def read(self) -> Iterator[dict]:
        if not self._path.exists() or self._path.stat().st_size <= self.position:
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
    """Yields the complete lines of a metrics file, or none if there is no file."""
    return MetricsTail(path).read()


def _parsed(line: bytes) -> dict | None:
    """Returns the content of a line, or None if a loss of power damaged it."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _finite(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _cut_torn_line(path: Path) -> None:
    """Removes an incomplete last line, which a killed process may have left."""
    with path.open("rb+") as file:
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)
