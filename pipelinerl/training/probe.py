"""The probe: do the servers sample from exactly the weights that the trainer holds?

Once a version is live, each server completes a few fixed held-out prompts while the trainer learns. Before
its weights change, the trainer scores the sampled tokens with them. In float32 the difference of
log-probabilities is numerical noise; anything more is a broken weight path.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from contracts.records import Completion, Rollout, TrainingSequence, WeightsPublished
from contracts.trainer import PackedBatch, TrainerWorker
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.components import training_sampling
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.training.probe_requests import ProbeRequests
from pipelinerl.training.probe_schedule import ProbeSchedule
from pipelinerl.training.ranks import Ranks


class Probe:
    """Exists on every rank; only rank 0 talks to servers, and decides for all."""

    def __init__(self, config: RunConfig, domain: Domain, ranks: Ranks, token: str | None):
        self._ranks = ranks
        self._token_fields = config.token_fields  # of no domain's giving here: their fill
        self._schedule = ProbeSchedule(config.probe.every)
        count = min(config.probe.prompts, domain.heldout_size)
        prompts = [domain.heldout_problem(i).messages for i in range(count)]
        sampling = replace(training_sampling(config), max_tokens=config.probe.max_tokens, seed=None)
        self._requests = ProbeRequests(token, config.probe.timeout_s, prompts, sampling)
        self._asked = 0  # requests of the probe that is under way
        self.is_under_way = False  # the same on every rank

    def begin(self, version: int, published: WeightsPublished | None) -> None:
        """Begins to probe the servers, if that is due. `published` counts on rank 0."""
        self.is_under_way = self._ranks.agree(lambda: self._begin(version, published))

    def _begin(self, version: int, published: WeightsPublished) -> bool:
        if not self._schedule.is_due(version, published.joinings):
            return self.is_under_way  # one of the same weights may be, which are published anew
        self._schedule.begin(published.joinings)
        self._asked = self._requests.begin(published.servers)
        return True

    def score(self, worker: TrainerWorker, version: int) -> dict[str, float]:
        """Ends the probe that is under way. Returns its metrics, those of the requests on rank 0 alone.

        `worker` still holds the weights of `version`. Late answers are waited for as the schedule says, and
        left out otherwise.
        """
        began = time.monotonic()
        self.is_under_way = False
        sequences: list[TrainingSequence] = []
        gap = {}
        if self._ranks.agree(lambda: self._collect(version, sequences)):
            gap = self._gap(worker, version, sequences)
        self._schedule.end(began, time.monotonic())
        return {**gap, "probe_unanswered": self._asked - len(sequences)}

    def close(self) -> None:
        """Ends what is under way."""
        self._requests.close()

    def _collect(self, version: int, sequences: list[TrainingSequence]) -> bool:
        """Appends the answers that are of this version, and returns whether there are any."""
        if not self._requests.have_ended and self._schedule.waits(time.monotonic()):
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
        """Returns how far the servers' log-probabilities are off. Rank 0 has all the sequences."""
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
