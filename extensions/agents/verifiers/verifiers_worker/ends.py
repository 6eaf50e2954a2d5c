"""What is said of an episode that has ended: a result, an error of the model's, or a loss that is not."""

import math
import re
from typing import Any

import verifiers.v1 as vf

MOST_METRICS = 64
LONGEST_NAME = 80
LONGEST_WORDS = 2000
LARGEST = 1e6
LIMITS = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}
UNWRITTEN = re.compile(r"read .*(No such file|not found|over the \d+ byte limit)", re.DOTALL)  # by the model
CAUSED = "\n\nThe above exception"  # in a traceback, after the first cause
PLACE = re.compile(r'File "([^"]+)", line (\d+)')
# What judges and tools of a task raise if the service that they ask fails.
OF_SERVICES = re.compile(  # after what was tried, as the package says it; what follows may quote the model
    r"^[^:]*: (?:\w+\.)*(RateLimitError|APIConnectionError|APITimeoutError|InternalServerError"
    r"|AuthenticationError|PermissionDeniedError|ConnectError|ConnectTimeout|ReadTimeout|PoolTimeout"
    r"|RemoteProtocolError): "
)


def end_of(episode: vf.Episode, seat: str, success_at: float) -> dict[str, Any]:
    """Returns what is said of an episode in which `seat` was trained.

    success_at: the reward from which an attempt is a success. Raises ValueError for several trained traces.
    """
    traces = [trace for trace in episode.traces if trace.agent.name == seat and trace.agent.trainable]
    if len(traces) > 1:
        raise ValueError(f"the episode has {len(traces)} traces of {seat}, and one can be trained")
    if episode.is_timeout:
        return {"result": {"truncated": True}}
    for failed in [episode, *episode.traces]:
        if not failed.ok and failed.last_error:
            return _end_of_error(failed.last_error, failed is episode or failed.agent.name == seat)
    if not traces:
        return {"error": f"the episode has no trace of {seat}"}
    is_timeout = any(trace.is_timeout for trace in episode.traces)
    return _scored(traces[0], success_at, is_timeout or traces[0].stop_condition in LIMITS)


def _scored(trace: vf.Trace, success_at: float, is_truncated: bool) -> dict[str, Any]:
    if not math.isfinite(trace.reward):
        return {"error": f"the reward is {trace.reward}"}
    rewards = {f"reward_{name}": reward.value for name, reward in trace.rewards.items() if reward}
    numbers = {**trace.metrics, **rewards}
    metrics = [(name, value) for name, value in numbers.items() if _is_metric(name, value)]
    result = {
        "reward": trace.reward,
        "success": trace.reward >= success_at,
        "metrics": dict(metrics[:MOST_METRICS]),
        "truncated": is_truncated,
    }
    return {"result": result}


def _is_metric(name: str, value: float | None) -> bool:
    is_named = len(name) <= LONGEST_NAME and name.isprintable()
    return is_named and value is not None and math.isfinite(value) and abs(value) <= LARGEST


def _end_of_error(error: vf.Error, is_own: bool) -> dict[str, Any]:
    """Returns what is said of an error. is_own: it is the trained agent's, or the environment's."""
    if error.type == "ProviderError" and is_own and "context_length_exceeded" in error.message:
        return {"result": {"truncated": True}}
    cause, *_ = (error.traceback or "").split(CAUSED)
    places = PLACE.findall(cause)
    words = words_of(error.type, error.message) + ("" if not places else " ({}:{})".format(*places[-1]))
    return {"lost": words} if _is_lost(error, is_own) else {"error": words}


def _is_lost(error: vf.Error, is_own: bool) -> bool:
    """Returns True if the model is not to blame."""
    if error.type == "ProviderError":
        status = error.status_code or 0
        return not is_own or status >= 500 or status == 429
    if error.type == "SandboxError":
        return UNWRITTEN.match(error.message) is None
    if error.type in ("TaskError", "EnvError"):
        return OF_SERVICES.search(error.message) is not None
    return error.type in ("TunnelError", "InterceptionError")


def words_of(kind: str, message: object) -> str:
    """Returns an error in words that can be sent: a model may have written half of a character."""
    return f"{kind}: {message}"[:LONGEST_WORDS].encode(errors="replace").decode()
