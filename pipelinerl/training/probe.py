"""The probe: do the servers sample from exactly the weights that the trainer holds?

Right after an update is live, each server completes a few fixed held-out prompts, and the trainer
scores the sampled tokens before its next step. In float32 the difference of log-probabilities is
numerical noise; anything more is a broken weight path.
A server that does not answer in time is probed ever more rarely.
"""

import asyncio
import time
from dataclasses import replace

import numpy as np

from contracts.records import MicroBatchRow, Rollout, TrainingSequence, decode, encode
from contracts.trainer import PackedBatch, TrainerWorker
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.completions import complete
from pipelinerl.clients.http_session import open_session
from pipelinerl.components import training_sampling
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.training.ranks import Ranks
from pipelinerl.training.silent_servers import SilentServers

LONGEST_PAUSE = 64  # for a server that does not answer, in timeouts


class Probe:
    """Exists on every rank; only rank 0 talks to servers."""

    def __init__(self, config: RunConfig, domain: Domain, ranks: Ranks, token: str | None):
        self._probe = config.probe
        self._ranks = ranks
        self._token = token
        self._token_fields = config.token_fields  # of no domain's giving here: their fill
        count = min(config.probe.prompts, domain.heldout_size)
        self._prompts = [domain.heldout_problem(i).messages for i in range(count)]
        self._timeout_s = config.probe.timeout_s
        self._silent: SilentServers[str] = SilentServers(self._timeout_s, LONGEST_PAUSE * self._timeout_s)
        self._sampling = replace(training_sampling(config), max_tokens=config.probe.max_tokens, seed=None)

    def due(self, version: int) -> bool:
        return version % self._probe.every == 0

    def measure(self, worker: TrainerWorker, version: int, servers: list[str]) -> dict[str, float]:
        """`servers` counts on rank 0. Tokens that a later version sampled cannot occur: none exists."""
        row = decode(self._ranks.share(lambda: encode(self._row(version, servers))))
        batch = PackedBatch.pack(row.micro_batches[self._ranks.rank], version, self._token_fields)
        batch = batch.to(worker.device)
        scores = worker.forward(batch, grad=False)
        gap = (scores.logprobs - batch.behaviour_logprobs)[batch.loss_mask].abs().cpu().numpy()
        if not gap.size:
            return {}
        return {"logprob_gap_mean_abs": float(gap.mean()), "logprob_gap_max_abs": float(np.max(gap))}

    def _row(self, version: int, servers: list[str]) -> MicroBatchRow:
        """What the servers sample, as a row whose tokens are all rank 0's."""
        sequences = asyncio.run(self._sample(servers))
        empty = [[] for _ in range(self._ranks.size - 1)]
        return MicroBatchRow(step=version, index=0, micro_batches=[sequences, *empty], closes_step=False)

    async def _sample(self, servers: list[str]) -> list[TrainingSequence]:
        now = time.monotonic()
        asked = [(url, p) for url in servers if self._silent.is_due(url, now) for p in self._prompts]
        async with open_session(self._token, self._timeout_s) as session:
            requests = [complete(session, url, prompt, self._sampling) for url, prompt in asked]
            answers = await asyncio.gather(*requests, return_exceptions=True)
        ended = time.monotonic()
        failed = {url for (url, _), a in zip(asked, answers, strict=True) if isinstance(a, BaseException)}
        self._silent.observe(
            {url for url, _ in asked}, failed if ended - now >= self._timeout_s else (), ended
        )
        return [
            sequence
            for answer in answers
            if not isinstance(answer, BaseException)  # a server that fails here is the publisher's to notice
            for sequence in training_sequences(
                _as_rollout(answer.completion), advantages=[0.0], token_fields=self._token_fields
            )
        ]


def _as_rollout(completion) -> Rollout:
    return Rollout(
        run="", rollout_id="probe", group_id=-1, problem_id="", domain="probe", completions=[completion]
    )
