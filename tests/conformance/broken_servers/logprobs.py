"""Broken servers. G4: log-probability semantics."""

from dataclasses import replace

import torch

from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G4", "token .* log-probability", part="alone")
class ReturnsRawLogprobs(ScriptedEngine):
    def sample(self, logits, sampling, generator):
        token_id, _ = super().sample(logits, sampling, generator)
        return token_id, float(torch.log_softmax(logits, -1)[token_id])


@mutant("G4", "of their distributions", part="batches")
class DrawsFromAnotherDistribution(ScriptedEngine):
    def sample(self, logits, sampling, generator):
        if sampling.temperature in (0, 1) or sampling.top_k or sampling.top_p:
            return super().sample(logits, sampling, generator)
        token_id, _ = super().sample(logits, replace(sampling, temperature=1.0), generator)
        return token_id, float(torch.log_softmax(logits / sampling.temperature, -1)[token_id])


@mutant("G4", "labelled 2: log-probability", part="recomputed")
class DividesTwiceAfterARecompute(ScriptedEngine):
    """The first token of each request in flight is sampled at the squared temperature."""

    _twice = 0  # tokens to be sampled so

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        self._twice = len(self._sequences) if kv_cache == "recompute" else 0

    def sample(self, logits, sampling, generator):
        if self._twice:
            self._twice -= 1
            sampling = replace(sampling, temperature=sampling.temperature**2)
        return super().sample(logits, sampling, generator)


@mutant("G4", "the likeliest ids of /score are off", part="scores")
class ScoresTheLikeliestAtTemperatureOne(ScriptedEngine):
    def scores_of(self, token_ids, temperature, top):
        likeliest = super().scores_of(token_ids, 1.0, top).top
        return super().scores_of(token_ids, temperature, top)._replace(top=likeliest)


@mutant("G4", "or others are likelier", part="scores")
class LeavesTheGivenTokenOutOfTheLikeliest(ScriptedEngine):
    def scores_of(self, token_ids, temperature, top):
        more = super().scores_of(token_ids, temperature, top + 1)
        places = zip(token_ids[1:], more.top, strict=True)
        others = [[pair for pair in pairs if pair[0] != given][:top] for given, pairs in places]
        return more._replace(top=others)
