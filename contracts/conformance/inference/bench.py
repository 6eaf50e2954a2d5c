"""What every check of the inference contract stands on: servers, reference, limits, comparisons."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import torch

from contracts.conformance.inference.reference import Reference, Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_end import TrainerEnd
from contracts.conformance.verdicts import Broken

SHORT = 24  # tokens of a completion that is only compared


@dataclass(frozen=True)
class Bench:
    servers: list[Server]
    reference: Reference
    tolerance: float  # nats: a log-probability further from the reference is wrong
    updates: int  # of G8
    timeout_s: float  # that updates and joins ask for
    grace_s: float  # that the contract allows beyond it
    token: str | None = None  # bearer token of the servers

    # --- runs -------------------------------------------------------------------------------------

    def trainer(self) -> TrainerEnd:
        return TrainerEnd(self.servers, self.reference.tied, self.timeout_s, self.grace_s)

    @contextlib.asynccontextmanager
    async def new_run(self) -> AsyncIterator[TrainerEnd]:
        """A run that has taken every server over and published `weights(1)` as version 1."""
        trainer = self.trainer()
        try:
            await trainer.join()
            await trainer.publish(1, self.reference.weights(1))
            yield trainer
        finally:
            trainer.leave()

    async def offered(self, field: str) -> list[str]:
        """What every server declares in `capabilities`, `kv_cache`, `accepts_dtypes` or `backends`."""
        declared = [getattr(await server.contract(), field) for server in self.servers]
        return [value for value in declared[0] if all(value in other for other in declared)]

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
        """The largest distance, in nats, of a log-probability of the first `upto` tokens from a Hugging
        Face forward of `weights`. Broken beyond the tolerance."""
        expected = self.reference.logprobs(weights, sample.prompt_token_ids, sample.token_ids, temperature)
        return self.within(sample, expected, reproduce, range(len(sample.token_ids))[:upto])

    def within(
        self, sample: Sample, expected: torch.Tensor, reproduce: str, positions: Sequence[int]
    ) -> float:
        """The same for given positions, against given log-probabilities [tokens]."""
        if not positions:
            return 0.0
        given = torch.tensor(sample.logprobs)
        errors = [abs(float(given[i] - expected[i])) for i in positions]
        worst = max(range(len(errors)), key=lambda i: errors[i] if errors[i] == errors[i] else float("inf"))
        if not errors[worst] <= self.tolerance:
            i = positions[worst]
            raise Broken(
                f"token {i} of {len(sample.token_ids)}, labelled {sample.versions[i]}: log-probability "
                f"{given[i]:.5f}, Hugging Face says {expected[i]:.5f}",
                f"at most {self.tolerance:g} apart",
                reproduce,
            )
        return errors[worst]

    async def content(self, server: Server, weights: Weights, version: int, after: str) -> float:
        """Greedy and sampled completions come from `weights` and say so; the largest distance in nats."""
        prompt = self.reference.prompt(20, seed=version)
        greedy, sampled = await asyncio.gather(
            server.complete(prompt, SHORT, temperature=0), server.complete(prompt, SHORT, temperature=1)
        )
        reproduce = f"{after}, then complete {prompt} on {server}"
        for sample in (greedy, sampled):
            if sample.spans != [(version, 0, len(sample.token_ids))]:
                raise Broken(
                    f"labels {sample.spans} after version {version} was live",
                    f"every token of a new request is sampled by version {version} and says so",
                    reproduce,
                )
        self.same_greedy(greedy, weights, reproduce)
        worst = [
            self.compare(greedy, weights, f"{reproduce} greedily"),
            self.compare(sampled, weights, reproduce),
        ]
        return max(worst)

    def same_greedy(self, sample: Sample, weights: Weights, reproduce: str) -> None:
        """Greedy ids are the likeliest ones; where two are equally likely, either is."""
        expected = self.reference.distribution(weights, sample.prompt_token_ids, sample.token_ids)
        for i, token_id in enumerate(sample.token_ids):
            if expected[i].max() - expected[i, token_id] > 2 * self.tolerance:
                raise Broken(
                    f"greedy token {i} is {token_id}",
                    f"{int(expected[i].argmax())}, which Hugging Face finds likelier by "
                    f"{expected[i].max() - expected[i, token_id]:.4f} nats",
                    f"{reproduce} greedily",
                )
