"""Reads lengths and service times from the directory of a recorded run."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contracts.records import Rollout
from extensions.simulator.rates import Rates
from pipelinerl.config import load_config
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.spans import spans_path
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import check_run


@dataclass(frozen=True)
class Recorded:
    """The rates of a recorded run, and its lengths in tokens. turns: largest number of turns of a rollout."""

    lengths: list[int]
    turns: int
    prompt_tokens: int
    rates: Rates


def recorded_inputs(run_dir: Path) -> Recorded:
    """Returns the run's measurements. Raises InvalidInputError without a run, ValueError for a short one."""
    check_run(run_dir)
    rollouts, learnt, optimizer, published_s, paused_s = _parts(run_dir).values()
    config = load_config(run_dir)
    update_s = float(np.median(published_s))
    pause_s = min(float(np.median(paused_s)), update_s)
    decode_s, per_request_s = _decoding(rollouts, pause_s, config.world.servers)
    rates = Rates(
        decode_s=decode_s,
        decode_per_request_s=per_request_s,
        train_tokens_per_s=sum(span["tokens"] for span in learnt) / sum(span["d"] for span in learnt),
        optimizer_s=_update_of_optimizer_s(learnt, optimizer, config.epochs),
        update_s=update_s,
        paused_s=pause_s,
    )
    prompts = [len(rollout.completions[0].prompt_token_ids) for rollout in rollouts]
    return Recorded(
        lengths=[rollout.sampled_tokens for rollout in rollouts],
        turns=max(len(rollout.completions) for rollout in rollouts),
        prompt_tokens=round(np.mean(prompts)),
        rates=rates,
    )


def _parts(run_dir: Path) -> dict[str, list]:
    """Returns the records for the computation of times, by name. Raises ValueError if one is empty."""
    with recorded_streams(run_dir) as streams:
        rollouts = [rollout for rollout in recorded(streams, "rollouts") if rollout.completions]
    published = _spans(run_dir, "trainer-0", "publish")
    paused = [line.get("publish_paused_s") for line in read_metrics(metrics_path(run_dir, "trainer"))]
    parts = {
        "rollouts": rollouts,
        "spans of training": list(_spans(run_dir, "trainer-0", "learn")),
        "spans of the optimizer": list(_spans(run_dir, "trainer-0", "optimizer")),
        "spans of publishing after the first": [span["d"] for span in published][1:],  # the first waits
        "pauses of servers": [seconds for seconds in paused if seconds is not None],
    }
    missing = [name for name, part in parts.items() if not part]
    if missing:
        raise ValueError(
            f"{run_dir} has no {', no '.join(missing)}: the run must be longer; give --like another one"
        )
    return parts


def _update_of_optimizer_s(learnt: list[dict], optimizer: list[dict], epochs: int) -> float:
    """Returns the seconds of one update. The optimizer's spans contain all epochs but the first."""
    epoch_s: Counter[int] = Counter()  # step -> seconds of an epoch
    for span in learnt:
        epoch_s[span["step"]] += span["d"]
    updates_s = [span["d"] - (epochs - 1) * epoch_s[span["step"]] for span in optimizer]
    return max(0.0, float(np.median(updates_s))) / epochs


def _decoding(rollouts: list[Rollout], paused_s: float, servers: int) -> tuple[float, float]:
    """Fits a line to the seconds per token, over the number of other requests on the same server.

    Returns the seconds without another request, and the additional seconds per request.
    """
    completions = [c for rollout in rollouts for c in rollout.completions if len(c.token_ids)]
    began = np.array([c.began for c in completions])
    ended = np.array([c.ended for c in completions])
    tokens = np.array([len(c.token_ids) for c in completions])
    updates = np.array([len(c.spans) - 1 for c in completions])
    seconds = (ended - began - paused_s * updates) / tokens
    others = np.maximum(_mean_in_flight(began, ended) / servers - 1, 0)
    columns = np.stack([np.ones_like(others), others], axis=1)
    weights = np.sqrt(tokens)
    (first, each), *_ = np.linalg.lstsq(columns * weights[:, None], seconds * weights, rcond=None)
    if first <= 0 or each < 0:  # the number of requests hardly changed
        return float(np.average(seconds, weights=tokens)), 0.0
    return float(first), float(each)


def _mean_in_flight(began: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Returns the mean number of requests in flight during each request."""
    times = np.concatenate([began, ended])
    order = np.argsort(times)
    times = times[order]
    changes = np.where(order < len(began), 1, -1)
    until = np.concatenate([[0.0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(times))])  # request seconds
    spent = np.interp(ended, times, until) - np.interp(began, times, until)
    return spent / np.maximum(ended - began, 1e-9)


def _spans(run_dir: Path, process: str, name: str) -> Iterator[dict]:
    path = spans_path(run_dir, process)
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        span = json.loads(line)
        if span["n"] == name:
            yield span
