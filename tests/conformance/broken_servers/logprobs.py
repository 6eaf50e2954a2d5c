"""Broken servers. G4: log-probability semantics."""

from dataclasses import replace

import torch

from inference_adapters import scripted
from tests.conformance.broken_servers.mutants import mutant


@mutant("G4", "token .* log-probability", part="alone")
def returns_raw_logprobs(options):
    right = scripted._sample

    def raw(logits, sampling, generator):
        token_id, _ = right(logits, sampling, generator)
        return token_id, float(torch.log_softmax(logits, -1)[token_id])

    scripted._sample = raw


@mutant("G4", "of their distributions", part="batches")
def draws_from_another_distribution(options):
    right = scripted._sample

    def cooled(logits, sampling, generator):
        if sampling.temperature in (0, 1) or sampling.top_k or sampling.top_p:
            return right(logits, sampling, generator)
        token_id, _ = right(logits, replace(sampling, temperature=1.0), generator)
        return token_id, float(torch.log_softmax(logits / sampling.temperature, -1)[token_id])

    scripted._sample = cooled
