"""Learns from the micro-batches of one rank: forward, objective, backward, and the updates of a step.

With several `epochs`, a step makes several updates on the same rollouts (K in PPO's Algorithm 1, arXiv
1707.06347). The first epoch runs as micro-batches arrive. The others reuse them, with the log-probabilities
and values under the step's initial weights, which the first epoch has computed.
"""

from dataclasses import replace

from contracts.records import TrainingSequence
from contracts.trainer import PackedBatch, StepReport, TokenScores, TrainerWorker
from pipelinerl.components import instantiate
from pipelinerl.config import RunConfig
from pipelinerl.errors import GaveUpError
from pipelinerl.training.period import conflict
from pipelinerl.training.ranks import Ranks
from pipelinerl.training.step_statistics import REPORTED, StepStatistics, check_names


class Learner:
    def __init__(self, config: RunConfig, worker: TrainerWorker):
        """Raises GaveUpError if the worker's period conflicts with the epochs."""
        if why := conflict(worker, config.epochs):
            raise GaveUpError(why)
        self._worker = worker
        self.objective = instantiate(config.objective)
        self._regularisers = [instantiate(component) for component in config.regularisers]
        self._epochs = config.epochs
        self._reset_every = config.reset_optimizer_every
        self._token_fields = config.token_fields
        self._kept: list[PackedBatch] = []  # micro-batches of the step, on the CPU
        self._statistics = StepStatistics()

    def accumulate(self, sequences: list[TrainingSequence], step: int) -> None:
        """Adds the gradient of one micro-batch to the current update."""
        batch = PackedBatch.pack(sequences, step, self._token_fields)
        scores = self._backward(batch)
        if self._epochs > 1:
            values = None if scores.values is None else scores.values.detach().cpu()
            logprobs = scores.logprobs.detach().cpu()
            self._kept.append(replace(batch, proximal_logprobs=logprobs, start_values=values))

    def _backward(self, batch: PackedBatch) -> TokenScores:
        """Runs forward, objective and backward. Returns the scores of the batch's tokens."""
        batch = batch.to(self._worker.device)
        scores = self._worker.forward(batch, entropy=True)
        loss, sums = self.objective(scores, batch)
        for regulariser in self._regularisers:
            more, further = regulariser(scores, batch)
            loss = loss + more
            sums = sums | further  # of two sums with one name, the later one is reported
        self._worker.backward(loss)
        self._statistics.update(scores, batch, loss, sums)
        return scores

    def close_step(self, step: int, ranks: Ranks) -> tuple[StepReport, dict[str, float]]:
        """Makes the updates of the step. Returns the last update's report and the statistics.

        step: number of the step, which is the version of its initial weights.

        `skipped` is True if all updates were skipped. `measures` are those of all updates; later ones replace
        earlier ones of the same name. Raises ValueError if one has a reserved name.
        """
        report = self._worker.step()
        skipped = report.skipped
        measures = dict(report.measures)
        for _ in range(self._epochs - 1):
            self._statistics = StepStatistics()
            for batch in self._kept:
                self._backward(batch)
            report = self._worker.step()
            skipped = skipped and report.skipped
            measures |= report.measures
        statistics = self._statistics.report(ranks)
        check_names("trainer's measures", measures, REPORTED | statistics.keys())
        self._statistics = StepStatistics()
        self._kept = []
        if self._reset_every and (step + 1) % self._reset_every == 0:
            self._worker.reset_optimizer()
        return replace(report, skipped=skipped, measures=measures), statistics
