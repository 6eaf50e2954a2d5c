"""Which lengths and times a simulated run has: of a recorded run, of the model's shape, or as given."""

import argparse
from dataclasses import dataclass, fields, replace

import numpy as np

from pipelinerl.config import RunConfig
from pipelinerl.demo_model.registry import DEMO_MODELS
from pipelinerl.launcher.model_source import find_model
from pipelinerl.simulate.lengths import Lengths, as_measured, lengths_of
from pipelinerl.simulate.rates import DEVICES, Rates, by_arithmetic
from pipelinerl.simulate.recorded import recorded_inputs

DRAWS = 1000  # for the mean length
PROMPT_TOKENS = 200


@dataclass(frozen=True)
class Inputs:
    """What a simulated run takes from outside."""

    rates: Rates
    lengths: Lengths
    prompt_tokens: int
    source: str

    def described(self) -> str:
        """Returns the numbers, for people."""
        given = ", ".join(f"{field.name} {getattr(self.rates, field.name):.3g}" for field in fields(Rates))
        return f"times {self.source}: {given}\nprompts of {self.prompt_tokens} tokens"


def inputs_of(config: RunConfig, given: argparse.Namespace) -> Inputs:
    """Returns the inputs that a command asks for. Raises ValueError where one is missing."""
    lengths = lengths_of(given.lengths, config.sampling.max_tokens) if given.lengths else None
    prompt_tokens = given.prompt_tokens
    if given.like:
        recorded = recorded_inputs(given.like)
        if lengths is None:
            lengths = as_measured(recorded.lengths)
        prompt_tokens = prompt_tokens or recorded.prompt_tokens
        rates = recorded.rates
        source = f"of {given.like}"
    else:
        if lengths is None:
            raise ValueError("give --lengths, or --like with a recorded run")
        prompt_tokens = prompt_tokens or min(PROMPT_TOKENS, config.sampling.max_prompt_tokens)
        rates, source = _of_shape(config, given, lengths, prompt_tokens)
    asked = {field.name: getattr(given, field.name) for field in fields(Rates)}
    named = {name: value for name, value in asked.items() if value is not None}
    return Inputs(replace(rates, **named), lengths, prompt_tokens, source)


def _of_shape(
    config: RunConfig, given: argparse.Namespace, lengths: Lengths, prompt_tokens: int
) -> tuple[Rates, str]:
    if given.decode_s is not None and given.train_tokens_per_s is not None:
        return Rates(given.decode_s, 0.0, given.train_tokens_per_s), "as given"
    shape = find_model(config, DEMO_MODELS[config.model.demo].directory).shape
    if shape is None:
        raise ValueError("the model's shape is not known: give --decode-s and --train-tokens-per-s")
    random = np.random.default_rng(0)
    context = prompt_tokens + np.mean([lengths(random) for _ in range(DRAWS)]) / 2
    rates = by_arithmetic(
        DEVICES[given.device],
        shape,
        config.inference.gpus_per_server,
        config.world.trainer_ranks,
        float(context),
    )
    return rates, f"by arithmetic for {given.device}"
