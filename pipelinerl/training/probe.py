"""The probe, which checks that the servers sample from exactly the trainer's weights.

Once a version is live, each server completes a few fixed held-out prompts while the trainer learns. Before
its weights change, the trainer scores the sampled tokens. In float32 the difference of log-probabilities is
numerical noise; a larger difference means that the weight path is broken.

If servers pull weights by themselves, a server is asked once it serves exactly the version, and training
never waits for it. The publishers compare the digests of stored versions, at every publication.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import replace

import torch

from contracts.records import Completion, Rollout, TrainingSequence, WeightsPublished
from contracts.trainer import PackedBatch, TrainerWorker
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.run_sampling import training_sampling
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.training.probe_requests import AwaitedVersion, ProbeRequests
from pipelinerl.training.ranks import Ranks

FIRST = 3  # first probes of a trainer process, which are always made, and whose answers are awaited
LARGEST_SHARE = 0.01  # largest share of the time since the first probe for waits for answers


class Probe:
    """The probe of one rank. Only rank 0 sends requests to servers, and decides for all ranks.

    pulled: True if servers pull weights (`WeightTransport.pulled`).
    """

    def __init__(self, config: RunConfig, domain: Domain, ranks: Ranks, token: str | None, pulled: bool):
        self._ranks = ranks
        self._token_fields = config.token_fields  # the probe's sequences have their fill values
        self._schedule = ProbeSchedule(config.probe.every)
        self._is_pulled = pulled
        count = min(config.probe.prompts, domain.heldout_size)
        prompts = [domain.heldout_problem(i).messages for i in range(count)]
        sampling = replace(training_sampling(config), max_tokens=config.probe.max_tokens, seed=None)
        self._requests = ProbeRequests(token, config.probe.timeout_s, prompts, sampling)
        self._servers = 0  # number of servers in the current probe
        self.is_under_way = False  # equal on every rank

    def begin(self, version: int, published: WeightsPublished | None) -> None:
        """Starts a probe if one is due. Only rank 0 needs `published`."""
        self.is_under_way = self._ranks.agree(lambda: self._begin(version, published))

    def _begin(self, version: int, published: WeightsPublished) -> bool:
        if not self._schedule.is_due(version, published.joinings):
            return self.is_under_way  # the same weights may be published again during their probe
        self._schedule.begin(published.joinings)
        awaited = AwaitedVersion(published.run, version) if self._is_pulled else None
        self._servers = self._requests.begin(published.servers, awaited)
        return True

    def score(self, worker: TrainerWorker, version: int) -> dict[str, float]:
        """Ends the current probe, and returns its metrics. Counts of requests are valid only on rank 0.

        `worker` must still have the weights of `version`. The schedule decides about a wait for late answers,
        which are otherwise left out.
        """
        began = time.monotonic()
        self.is_under_way = False
        sequences: list[TrainingSequence] = []
        gap = {}
        if self._ranks.agree(lambda: self._collect(version, sequences)):
            gap = self._gap(worker, version, sequences)
        self._schedule.end(began, time.monotonic())
        counts = {"probe_unanswered": self._requests.count - len(sequences)}
        if self._is_pulled:
            counts["probe_skipped"] = self._servers - self._requests.servers_asked
        return gap | counts

    def wait(self) -> None:
        """Waits until the servers have answered, or the time limit has passed. Only on rank 0."""
        self._requests.wait()

    def close(self) -> None:
        self._requests.close()

    def _collect(self, version: int, sequences: list[TrainingSequence]) -> bool:
        """Appends the answers that this version sampled. Returns True if there are any."""
        is_late = not self._requests.have_ended and not self._is_pulled
        if is_late and self._schedule.waits(time.monotonic()):
            self._requests.wait()
        sequences.extend(self._sequences(version, self._requests.take()))
        return bool(sequences)

    def _sequences(self, version: int, answers: list[Completion]) -> Iterator[TrainingSequence]:
        for completion in answers:
            rollout = _as_rollout(completion)
            for sequence in training_sequences(rollout, [0.0], token_fields=self._token_fields):
                if (sequence.versions == version).any():
                    yield sequence

    def _gap(
        self, worker: TrainerWorker, version: int, sequences: list[TrainingSequence]
    ) -> dict[str, float]:
        """Returns the gap between the servers' log-probabilities and the trainer's.

        Only rank 0 has the sequences.
        """
        batch = PackedBatch.pack(sequences, version, self._token_fields).to(worker.device)
        scores = worker.forward(batch, grad=False)
        sampled = batch.loss_mask & (batch.versions == version)
        gap = (scores.logprobs - batch.behaviour_logprobs)[sampled].abs()
        if not len(gap):
            return {}
        mean, largest = torch.stack([gap.mean(), gap.max()]).tolist()
        return {"logprob_gap_mean_abs": mean, "logprob_gap_max_abs": largest}


def _as_rollout(completion: Completion) -> Rollout:
    return Rollout(
        run="", rollout_id="probe", group_id=-1, problem_id="", domain="probe", completions=[completion]
    )


class ProbeSchedule:
    """Decides when servers are probed, and if training waits for late answers. Pure state; times in seconds.

    every: weight versions between two probes, after the first probes of the process.
    """

    def __init__(self, every: int):
        self._every = every
        self._probes = 0
        self._known: set[int] = set()  # joinings of servers that have been probed
        self._since: float | None = None  # end of the first probe
        self._spent_s = 0.0  # seconds of the later probes

    def is_due(self, version: int, joinings: Collection[int]) -> bool:
        """Returns True if a version is to be probed on its servers. New servers are always probed."""
        return self._probes < FIRST or version % self._every == 0 or not self._known.issuperset(joinings)

    def begin(self, joinings: Collection[int]) -> None:
        self._probes += 1
        self._known.update(joinings)

    def waits(self, now: float) -> bool:
        """Returns True if training waits for late answers before the weights change."""
        return self._probes <= FIRST or self._spent_s <= LARGEST_SHARE * (now - self._since)

    def end(self, began: float, now: float) -> None:
        if self._since is None:
            self._since = now
        else:
            self._spent_s += now - began
