"""Metrics: one file of JSON lines per process, `RUN_DIR/metrics/<process>.jsonl`.

A line is `{"time": unix seconds, "step": n, <name>: number or null, ...}`. The writing process chooses the
names, and readers ignore unknown names. A number that is not finite is written as null.

    trainer       step = closed training steps. At a step: loss, grad_norm, learning_rate, skipped (1 or 0;
                  trained_tokens excludes skipped steps), ess, ratio_mean_abs_log, ratio_max_abs_log,
                  mismatch_k3, entropy, lag_mean, lag_max, masked_tokens (stale),
                  logprob_gap_at_lag_<lag>, trained_tokens, trained_tokens_per_s; the objective's sums,
                  per token; the trainer's measures; alarm_<name>: 1 when a warning sign begins;
                  step_s and its parts wait_s, learn_s, optimizer_s, quiesce_s, sleep_s, onload_s,
                  offload_s, publish_s, probe_s and save_s: see `pipelinerl.spans`.
                  At a publication: weight_version, publish_seconds, publish_paused_s, publish_bytes,
                  servers, and publish_<phase>_s for open, gather, send and confirm. At a probe:
                  logprob_gap_mean_abs, logprob_gap_max_abs; probe_unanswered: requests without a token of
                  that version before the weights changed; probe_skipped: with relays, servers that did
                  not serve exactly that version until then.
                  With relays, at a publication: pack_s, the time until the previous version was stored;
                  pack_failures, versions that were not stored because the disk was full;
                  servers_behind, the lag of the slowest server in versions.
    actor         step = live weight version. For the rollouts that finished since the previous line:
                  reward_mean, reward_<component>, success_rate, success_<domain> if there are several,
                  length_mean, length_max (sampled tokens), truncated_share, generation_tokens_per_s. For
                  the time since then, places_s seconds: places_busy, the share of the request slots in
                  use; blocked_<word>, the share of the time with an unused slot, for each word of
                  `BlockedBy`. Shares of the started rollouts: outside_requests (without a request),
                  judged_share (waiting for a judgement), or agent_share (programs between two requests).
                  Also in_flight, rollouts_finished, alarm_<name>.
                  Every ten seconds: in_flight, including evaluations; rollouts_under_way, all started ones;
                  servers_held, which get no requests because of their weights; and since the process
                  started rollouts_finished, and attempts_finished at held-out problems.
                  At an evaluation, with step = the version at its start: heldout_success,
                  heldout_success_<set> if there are several, heldout_failed, and the range of versions
                  that sampled: heldout_first_version, heldout_last_version.
    judging       step = judged answers. Every few seconds: waiting, answers; busy_share of the workers' time;
                  restarts of the template process. By verifier: seconds_<name>_p50 and _p99 of a
                  judgement, queue_s_<name>_p99 before it; undecided_<why>_<name> since the start.
    preprocessor  step = formed steps. Since the start: dropped_<reason>, groups; masked_<reason>, excluded
                  rollouts of other groups; zero_advantage_solved and _hopeless, groups of equal rewards
                  that all members solved, or none; groups; sampled_tokens, useful_tokens (in the loss)
                  and useful_share; alarm_<name>: 1 when a warning sign begins;
                  reference_s: seconds of scoring, summed over rows; reference_version: weight version
                  that scored the last row.
    run           step = closed training steps. Measurements over the last steps (`pipelinerl.report`), and
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
    """The reason why the actor starts no group although a request slot is free."""

    SERVERS = "servers"  # there is no server
    WEIGHTS = "weights"  # all servers are held, because their weights must not be used
    PAUSED = "gate"  # the trainer waits until no request is in flight (`schedule: async`)
    JUDGING = "judging"  # too many rollouts wait for a judgement
    AGENTS = "agents"  # too many programs are between their requests
    LAG = "lag"  # another group could exceed the lag limit
    BEHIND = "behind"  # another group could exceed it, because a server has an older version
    QUEUE = "queue"  # enough rollouts wait for the trainer


def metrics_path(run_dir: Path, process: str) -> Path:
    return run_dir / "metrics" / f"{process}.jsonl"


class LineFile:
    """A file of appended lines, each passed to the operating system immediately.

    Lines that cannot be written are dropped, with one warning. what: name of the lines in it.
    """

    def __init__(self, path: Path, what: str):
        self._path = path
        self._what = what
        self._file: io.FileIO | None = None
        self._is_failing = False

    def append(self, line: str) -> None:
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
        """Writes one line. Values may be of any type that `float` accepts, such as one-element tensors."""
        numbers = {name: _finite(value) for name, value in values.items()}
        self._lines.append(json.dumps({"time": time.time(), "step": step, **numbers}, allow_nan=False))

    def close(self) -> None:
        self._lines.close()


class MetricsTail:
    """A reader of a growing metrics file. `read` yields the lines that were completed since the last call.

    position: the end of the last yielded line, in bytes.
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
    """Yields the complete lines of a metrics file, or none if it does not exist."""
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
