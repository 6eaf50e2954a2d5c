"""Compares what servers are sent with the limits in their engines' arguments. Called by `model` and the plan.

Engines name their options differently. One that is not set, or is no number, is not compared.
"""

from collections.abc import Iterator

from pipelinerl.clients.adaptive_limit import MOST
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError

CONTEXT = ("max_model_len", "context_length")  # tokens of a sequence: vLLM's option, SGLang's
PLACES = ("max_num_seqs", "max_running_requests")  # requests that are generated at a time


def most_requests(config: RunConfig) -> int:
    """Returns the most training and evaluation requests that a server has at a time."""
    training = config.inference.concurrency or MOST
    evaluated = config.eval.concurrency
    return max(training, evaluated) if config.eval.pinned else training + evaluated


def check_context(config: RunConfig, context: int | None) -> None:
    """Raises PlanError if a server refuses the longest sequences, for instance in a resumed run.

    `context`: tokens of the model's; None if it is not known yet.
    """
    completions = {"sampling": config.sampling.max_tokens, "probe": config.probe.max_tokens}
    section = max(completions, key=completions.__getitem__)
    longest = config.sampling.max_prompt_tokens + completions[section]
    for name, tokens in _given(config, CONTEXT):
        if context is not None and tokens > context:
            raise PlanError(f"{name}={tokens} exceeds the model's context of {context}; lower it")
        if 0 < tokens < longest:
            raise PlanError(
                f"sampling.max_prompt_tokens + {section}.max_tokens = {longest} exceeds {name}={tokens}; "
                f"set {name}={longest}"
            )


def warned_of_places(config: RunConfig) -> Iterator[str]:
    """Yields a line of the plan for each engine that has fewer places than a server has requests."""
    requests = most_requests(config)
    for name, places in _given(config, PLACES):
        if places < requests:
            yield (
                f"warning: a server gets up to {requests} requests (inference and eval.concurrency): "
                f"{name}={places} are generated at a time, and the others wait; raise it"
            )


def _given(config: RunConfig, options: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yields each of the options that is set, as the command line names it, and its value."""
    for key, engine in config.inference.used_engines(config.world.servers).items():
        for option, value in engine.arguments.items():
            if option.replace("-", "_") in options and type(value) is int:
                yield f"{key}.arguments.{option}", value
