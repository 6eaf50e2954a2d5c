"""Broken servers. G4: sampling parameters, alone and in one batch."""

from dataclasses import replace

import torch

from contracts.inference import SamplingParameters, ScoreRequest, ScoreResponse
from inference_adapters import generation_routes
from inference_adapters.scripted import VOCABULARY, ScriptedEngine, distribution
from tests.conformance.broken_servers.mutants import mutant


def resampled(change) -> type[ScriptedEngine]:
    """Returns an engine that samples with `change(self, parameters)` instead of the request's parameters."""

    class Resamples(ScriptedEngine):
        def _generate(self, prompt, sampling):
            return super()._generate(prompt, change(self, sampling))

    return Resamples


def side_by_side(parameters_of) -> type[ScriptedEngine]:
    """Returns an engine that samples each token by `parameters_of(requests in flight, own parameters)`."""

    class Mixes(ScriptedEngine):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.batch: list[SamplingParameters] = []

        async def _generate(self, prompt, sampling):
            self.batch.append(sampling)
            mixed = _Mixed(self.batch, sampling, parameters_of)
            try:
                async for delta in super()._generate(prompt, mixed):
                    yield delta
            finally:
                self.batch.remove(sampling)

    return Mixes


class _Mixed:
    """Sampling parameters that are chosen again for each token."""

    def __init__(self, batch, own, parameters_of):
        self.batch = batch
        self.own = own
        self.parameters_of = parameters_of

    def __getattr__(self, name):
        if name in ("temperature", "top_p", "top_k", "seed"):
            return getattr(self.parameters_of(self.batch, self.own), name)
        return getattr(self.own, name)


@mutant("G4", "with .*log-probability", part="batches")
class TakesTheTemperatureOfTheFirstRequest(side_by_side(lambda batch, own: batch[0])):
    pass


@mutant("G4", "with .*log-probability", part="batches")
class SamplesAllGreedilyBesideAGreedyOne(
    side_by_side(lambda batch, own: next((one for one in batch if one.temperature == 0), own))
):
    pass


@mutant("G4", "top_[kp].*log-probability", part="batches")
class TruncatesOnlyIfAllInTheBatchDo(
    side_by_side(
        lambda batch, own: (
            own if all(one.top_k or one.top_p for one in batch) else replace(own, top_k=None, top_p=None)
        )
    )
):
    pass


def _clamped(engine, sampling):
    low = 0.0 if sampling.temperature < 0.2 else sampling.temperature
    return replace(sampling, temperature=min(2.0, low))


@mutant("G4", "log-probability", part="batches")
class ClampsTemperaturesBelowAFifthAndAboveTwo(resampled(_clamped)):
    pass


@mutant("G4", "'temperature': 0.0001}: log-probability", part="batches")
class RaisesTemperaturesToAHundredth(
    resampled(lambda engine, s: replace(s, temperature=max(0.01, s.temperature)) if s.temperature else s)
):
    pass


@mutant("G4", "'temperature': 10000.0}: log-probability", part="batches")
class LowersTemperaturesToAHundred(
    resampled(lambda engine, s: replace(s, temperature=min(100.0, s.temperature)))
):
    pass


@mutant("G4", "log-probability", part="alone")
class TakesDefaultsOfTheModel(
    resampled(lambda engine, s: s if s.top_k or s.top_p else replace(s, top_k=20, top_p=0.95))
):
    pass


@mutant("G4", "completions 0 and 1", part="seeds")
def samples_all_choices_with_one_seed(options):
    right = generation_routes.sampling_parameters

    def alike(request, *others):
        return [replace(one, seed=request.seed) for one in right(request, *others)]

    generation_routes.sampling_parameters = alike


@mutant("G4", "with equal seeds differs", part="seeds")
class TakesSeedZeroForNone(resampled(lambda engine, s: replace(s, seed=s.seed or None))):
    pass


@mutant("G4", "of their distributions|are both", part="batches")
class DrawsTheSameNoiseWithoutASeed(
    resampled(lambda engine, s: s if s.seed is not None else replace(s, seed=1))
):
    pass


@mutant("G4", "with equal seeds differs", part="seeds")
def seeds_choices_two_apart(options):
    right = generation_routes.sampling_parameters

    def apart(request, *others):
        found = right(request, *others)
        return [replace(one, seed=request.seed and request.seed + 2 * i) for i, one in enumerate(found)]

    generation_routes.sampling_parameters = apart


@mutant("G4", "with equal seeds differs", part="seeds")
class IgnoresSeedsBesideOthers(
    side_by_side(lambda batch, own: own if len(batch) == 1 else replace(own, seed=None))
):
    pass


@mutant("G4", "log-probability", part="alone")
class ReportsZeroForGreedyTokens(ScriptedEngine):
    def sample(self, logits, sampling, generator):
        token_id, logprob = super().sample(logits, sampling, generator)
        return token_id, 0.0 if sampling.temperature == 0 else logprob


@mutant("G4", "top_[kp].*log-probability", part="batches")
class DoesNotRenormaliseWhatItTruncates(ScriptedEngine):
    def sample(self, logits, sampling, generator):
        token_id, logprob = super().sample(logits, sampling, generator)
        if sampling.top_k or sampling.top_p:
            logprob = float(torch.log_softmax(logits / (sampling.temperature or 1), -1)[token_id])
        return token_id, logprob


@mutant("G4", "log-probability", part="batches")
class KnowsOnlyTheTwentyLikeliest(ScriptedEngine):
    def sample(self, logits, sampling, generator):
        token_id, logprob = super().sample(logits, sampling, generator)
        return token_id, logprob if token_id in logits.topk(20).indices else -9999.0


@mutant("G4", "of their distributions", part="batches")
class NeverDrawsTheUnlikely(ScriptedEngine):
    """Applies a silent min_p, but reports the complete distribution."""

    def sample(self, logits, sampling, generator):
        p = torch.softmax(logits / (sampling.temperature or 1), -1)
        kept = logits.masked_fill(p < 0.05 * p.max(), -torch.inf)
        token_id, _ = super().sample(kept, sampling, generator)
        return token_id, float(distribution(logits, sampling)[token_id])


@mutant("G4", "log-probability", part="batches")
class ReportsRawOnTheTextRoute(ScriptedEngine):
    chat = False

    def encode_chat(self, messages, tools):
        self.chat = True
        return super().encode_chat(messages, tools)

    def _generate(self, prompt, sampling):
        raw = not self.chat
        self.chat = False
        return self._reported(prompt, sampling, raw)

    async def _reported(self, prompt, sampling, raw):
        ids = list(prompt)
        async for delta in super()._generate(prompt, sampling):
            if raw and delta.token_ids and sampling.temperature == 0.5:
                log_p = torch.log_softmax(self._logits(self._states(ids)[-1]), -1)
                delta = replace(delta, logprobs=[float(log_p[i]) for i in delta.token_ids])
            ids += delta.token_ids
            yield delta


@mutant("G4", "log-probability", part="alone")
class PenalisesRepetition(ScriptedEngine):
    def _logits(self, states):
        logits = super()._logits(states)
        seen = getattr(self, "seen", None)
        if seen is not None:
            logits = torch.where(seen, logits / 1.05, logits)
        return logits

    async def _generate(self, prompt, sampling):
        ids = [*prompt]
        async for delta in super()._generate(prompt, sampling):
            ids += delta.token_ids
            self.seen = torch.zeros(VOCABULARY, dtype=torch.bool)
            self.seen[ids] = True
            yield delta


# --- /score


@mutant("G4", "POST /score is off", part="scores")
class ScoresWithoutTemperature(ScriptedEngine):
    async def score(self, request: ScoreRequest) -> ScoreResponse:
        return await super().score(request.model_copy(update={"temperature": 1.0}))


@mutant("G4", "POST /score is off", part="scores")
class ScoresByDividedLogprobs(ScriptedEngine):
    async def score(self, request: ScoreRequest) -> ScoreResponse:
        answer = await super().score(request.model_copy(update={"temperature": 1.0}))
        divided = [[value / request.temperature for value in one] for one in answer.logprobs]
        return ScoreResponse(logprobs=divided, version=answer.version)


@mutant("G4", "POST /score", part="scores")
class ScoresInTheOrderOfLength(ScriptedEngine):
    async def score(self, request: ScoreRequest) -> ScoreResponse:
        ordered = sorted(request.sequences, key=len)
        return await super().score(request.model_copy(update={"sequences": ordered}))


@mutant("G4", "POST /score is off", part="scores")
class ScoresPaddingOnTheLeft(ScriptedEngine):
    async def score(self, request: ScoreRequest) -> ScoreResponse:
        longest = max(map(len, request.sequences))
        padded = [[1] * (longest - len(ids)) + ids for ids in request.sequences]
        answer = await super().score(request.model_copy(update={"sequences": padded}))
        kept = [
            row[longest - len(ids) :] for row, ids in zip(answer.logprobs, request.sequences, strict=True)
        ]
        return ScoreResponse(logprobs=kept, version=answer.version)


@mutant("G4", "POST /score", part="scores")
class ForgetsEarlierTokensOfLongSequences(ScriptedEngine):
    async def score(self, request: ScoreRequest) -> ScoreResponse:
        answers = []
        for ids in request.sequences:
            rows = []
            for start in range(0, max(1, len(ids) - 1), 512):
                piece = ids[start : start + 513]
                part = request.model_copy(update={"sequences": [piece]})
                rows += (await super().score(part)).logprobs[0]
            answers.append(rows)
        return ScoreResponse(logprobs=answers, version=self._version)
