"""The lengths and times of a simulated run: from a recorded run, the model's shape or the command line."""

import argparse
from dataclasses import dataclass, fields, replace
from pkgutil import resolve_name

from contracts.model_shape import ModelShape
from extensions.simulator.lengths import Lengths, as_measured, lengths_of
from extensions.simulator.rates import Rates, by_arithmetic
from extensions.simulator.recorded import recorded_inputs
from pipelinerl.config import RunConfig

PROMPT_TOKENS = 200
# Those of a run of the demo, by `python -m extensions.simulator --like RUN_DIR`.
OF_THE_DEMO = Rates(0.1, 0.0, 9000.0, optimizer_s=0.02, update_s=0.1, paused_s=0.005)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a simulated run."""

    rates: Rates
    lengths: Lengths
    prompt_tokens: int
    source: str

    def described(self) -> str:
        """Returns the numbers as text."""
        given = ", ".join(f"{field.name} {getattr(self.rates, field.name):.3g}" for field in fields(Rates))
        prompts = f"prompts of {self.prompt_tokens} tokens"
        return "\n".join([f"times {self.source}: {given}", prompts, *self._cut()])

    def _cut(self) -> list[str]:
        share = self.lengths.share_cut
        if not share:
            return []
        return [
            f"answers are cut at {self.lengths.longest} tokens (sampling.max_tokens): "
            f"about {share:.1%} of them would be longer"
        ]


def check_samples(config: RunConfig) -> None:
    """Raises ValueError for a run that trains on given answers: nothing waits for servers there."""
    if getattr(resolve_name(config.objective.target), "learns_from_demonstrations", 0):
        raise ValueError("the run trains on given answers: nothing is sampled, and nothing to be simulated")


def usual_lengths(config: RunConfig) -> str:
    """Returns the lengths that are assumed where none are given: few answers reach the limit."""
    return f"lognormal:{max(1, config.sampling.max_tokens // 8)},1.0"


def inputs_of(config: RunConfig, shape: ModelShape | None, given: argparse.Namespace) -> Inputs:
    """Returns the inputs for the arguments of a command. Raises ValueError if one is missing."""
    longest = config.sampling.max_tokens
    lengths = lengths_of(given.lengths, longest) if given.lengths else None
    if given.like:
        recorded = recorded_inputs(given.like)
        if lengths is None:
            lengths = as_measured(recorded.lengths, longest * recorded.turns)
        prompt_tokens = _prompt_tokens(config, given, recorded.prompt_tokens)
        rates = recorded.rates
        source = f"of {given.like}"
    else:
        lengths = lengths or lengths_of(usual_lengths(config), longest)
        usual = min(PROMPT_TOKENS, config.sampling.max_prompt_tokens)
        prompt_tokens = _prompt_tokens(config, given, usual)
        rates, source = _of_shape(config, shape, given, lengths, prompt_tokens)
    asked = {field.name: getattr(given, field.name) for field in fields(Rates)}
    named = {name: value for name, value in asked.items() if value is not None}
    return Inputs(replace(rates, **named), lengths, prompt_tokens, source)


def _prompt_tokens(config: RunConfig, given: argparse.Namespace, otherwise: int) -> int:
    """Returns --prompt-tokens, or `otherwise` by default. Raises ValueError if it is out of range."""
    prompt_tokens = otherwise if given.prompt_tokens is None else given.prompt_tokens
    most = config.sampling.max_prompt_tokens
    if not 1 <= prompt_tokens <= most:
        raise ValueError(
            f"prompts of {prompt_tokens} tokens: set --prompt-tokens from 1 to {most}, which is "
            "sampling.max_prompt_tokens"
        )
    return prompt_tokens


def _of_shape(
    config: RunConfig,
    shape: ModelShape | None,
    given: argparse.Namespace,
    lengths: Lengths,
    prompt_tokens: int,
) -> tuple[Rates, str]:
    if given.decode_s is not None and given.train_tokens_per_s is not None:
        return Rates(given.decode_s, 0.0, given.train_tokens_per_s), "as given"
    if shape is None and config.model.path is None:
        return OF_THE_DEMO, "of the demo on two cores, because the model is not made yet"
    if shape is None:
        raise ValueError("the model's shape is not known: give --decode-s and --train-tokens-per-s")
    rates = by_arithmetic(given.device, config, shape, prompt_tokens + lengths.mean / 2)
    return rates, f"by arithmetic for {given.device}"
