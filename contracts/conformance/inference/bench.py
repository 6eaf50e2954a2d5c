"""The test bench of every inference check: servers, reference, limits and comparisons."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import torch

from contracts.conformance.inference.declared import offered
from contracts.conformance.inference.reference import Reference, Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.speed import Speed
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

SHORT = 24  # tokens of a completion that is only compared with the reference
FEW = 4  # tokens of a completion of which only the prompt matters
LONGER = 150  # tokens of a prompt that exceeds a cache block


@dataclass(frozen=True)
class Bench:
    """The servers under test, the reference model, and the comparisons between them."""

    servers: list[Server]
    reference: Reference
    settings: Settings
    dtype: torch.dtype  # to which weights are rounded
    context: int  # maximum length of prompt and completion on every server, or less if the kit needs less
    speeds: list[Speed | None] = field(default_factory=list)  # of each server, before the checks
    _shared: list[TrainerPeer] = field(default_factory=list)  # trainer of the shared run, if there is one

    def weights(self, seed: int) -> Weights:
        """Returns random weights in `dtype`, determined by the seed."""
        return {name: tensor.to(self.dtype) for name, tensor in self.reference.weights(seed).items()}

    # --- runs -------------------------------------------------------------------------------------

    def trainer(self) -> TrainerPeer:
        return TrainerPeer(self.servers, self.reference.tied, self.settings)

    async def run(self) -> TrainerPeer:
        """Returns the trainer of the run that the parts of a guarantee share.

        If there is none, starts a run on every server, and publishes `weights(1)` as version 1.
        """
        if not self._shared:
            self._shared.append(self.trainer())
            await self._shared[0].join()
            await self._shared[0].publish(1, self.weights(1))
        return self._shared[0]

    def end_run(self) -> None:
        """Ends the shared run, if there is one."""
        while self._shared:
            self._shared.pop().leave()

    @contextlib.asynccontextmanager
    async def new_run(self) -> AsyncIterator[TrainerPeer]:
        """Ends the shared run, starts another as in `run`, and yields its trainer."""
        self.end_run()
        trainer = self.trainer()
        try:
            await trainer.join()
            await trainer.publish(1, self.weights(1))
            yield trainer
        finally:
            trainer.leave()

    async def offered(self, field: str) -> list[str]:
        return await offered(self.servers, field)

    async def receive_modes(self) -> list[str]:
        return ["paused", *(["staged"] if "staged" in await self.offered("capabilities") else [])]

    # --- comparisons ------------------------------------------------------------------------------

    def compare(
        self,
        sample: Sample,
        weights: Weights,
        reproduce: str,
        temperature: float = 1.0,
        upto: int | None = None,
    ) -> float:
        """Returns the largest error, in nats, of the first `upto` log-probabilities under `weights`.

        Raises GuaranteeError beyond the tolerance.
        """
        expected = self.reference.logprobs(weights, sample.prompt_token_ids, sample.token_ids, temperature)
        return self.check_positions(sample, expected, reproduce, range(len(sample.token_ids))[:upto])

    def check_positions(
        self, sample: Sample, expected: torch.Tensor, reproduce: str, positions: Sequence[int]
    ) -> float:
        """Returns the largest error, in nats, at `positions`. Raises GuaranteeError beyond the tolerance.

        expected: [tokens] log-probabilities.
        """
        worst = self.distance(sample, expected, positions)
        if not worst <= self.settings.tolerance:
            given = torch.tensor(sample.logprobs)
            i = max(positions, key=lambda i: float((given[i] - expected[i]).abs().nan_to_num(torch.inf)))
            raise GuaranteeError(
                f"token {i} of {len(sample.token_ids)}, labelled {sample.versions[i]}: log-probability "
                f"{given[i]:.5f}, Hugging Face says {expected[i]:.5f}",
                f"at most {self.settings.tolerance:g} apart",
                reproduce,
            )
        return worst

    def distance(self, sample: Sample, expected: torch.Tensor, positions: Sequence[int]) -> float:
        """Returns the largest error, in nats, at `positions`; 0 if there are none."""
        chosen = torch.tensor(list(positions), dtype=torch.long)
        errors = (torch.tensor(sample.logprobs)[chosen] - expected[chosen]).abs().nan_to_num(torch.inf)
        return float(errors.max()) if len(chosen) else 0.0

    async def check_content(self, server: Server, weights: Weights, version: int, after: str) -> float:
        """Checks that greedy and sampled completions come from `weights` and are labelled `version`.

        Returns the largest error in nats.
        """
        # Contains the lowest and the highest id, because faults are likeliest at the ends of tables.
        ends = [self.reference.ordinary[0], self.reference.ordinary[-1]]
        prompt = ends + self.reference.prompt(18, seed=version)
        longer = self.reference.prompt(min(LONGER, self.context // 2), seed=version + 1)
        greedy, sampled, read = await asyncio.gather(
            server.complete(prompt, SHORT, temperature=0),
            server.complete(prompt, SHORT, temperature=1),
            server.complete(longer, FEW, temperature=1),
        )
        reproduce = f"{after}, then complete {prompt} on {server}"
        for sample in (greedy, sampled, read):
            self.check_label(sample, version, reproduce)
        self.check_greedy(greedy, weights, reproduce)
        worst = [
            self.compare(greedy, weights, f"{reproduce} greedily"),
            self.compare(sampled, weights, reproduce),
            self.compare(read, weights, f"{after}, then complete {longer} on {server}"),
        ]
        return max(worst)

    def check_label(self, sample: Sample, version: int, reproduce: str) -> None:
        """Checks that every token of a request that began after `live` is labelled `version`."""
        if set(sample.versions) != {version}:
            raise GuaranteeError(
                f"labels {sample.spans} after version {version} was live",
                f"every token of a new request is sampled by version {version} and says so",
                reproduce,
            )

    def check_greedy(self, sample: Sample, weights: Weights, reproduce: str) -> None:
        """Checks that greedy ids are the most likely ones. If two are equally likely, either is accepted."""
        expected = self.reference.distribution(weights, sample.prompt_token_ids, sample.token_ids)
        for i, token_id in enumerate(sample.token_ids):
            if expected[i].max() - expected[i, token_id] > 2 * self.settings.tolerance:
                raise GuaranteeError(
                    f"greedy token {i} is {token_id}",
                    f"{int(expected[i].argmax())}, which Hugging Face finds likelier by "
                    f"{expected[i].max() - expected[i, token_id]:.4f} nats",
                    f"{reproduce} greedily",
                )
