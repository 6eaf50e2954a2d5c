"""Reads the events that SGLang sends while it generates."""

from contracts.inference import TokenDelta
from inference_adapters.sglang.server_process import SglangError

IMPOSSIBLE = -1e30  # SGLang reports the lowest float for a log-probability of minus infinity


def read_delta(event: dict, given: int, likeliest: int = 0) -> TokenDelta:
    """Returns the tokens of an SGLang event that follow the first `given` ones.

    SGLang reports only at a request's end which weights sampled its tokens, so versions come with the last
    event. Raises SglangError if SGLang could not generate.
    """
    if error := event.get("error"):
        raise SglangError(error["message"])
    meta = event["meta_info"]
    reason = meta["finish_reason"]
    if reason and reason.get("status_code"):
        raise SglangError(reason["message"])
    # An aborted waiting request repeats data at the end: one token, and all log-probabilities.
    new = meta["completion_tokens"] - given
    ids = event["output_ids"]
    logprobs = meta["output_token_logprobs"]
    if min(len(ids), len(logprobs)) < new:
        raise SglangError(f"SGLang sampled {new} tokens, and sent {len(ids)}")
    spans = meta["weight_versions"] if reason else []
    return TokenDelta(
        token_ids=ids[:new],
        logprobs=[entry[0] for entry in logprobs[:new]],
        versions=[int(span["version"]) for span in spans for _ in range(span["start"], span["end"])],
        finish_reason=reason and reason["type"],
        top_logprobs=[_pairs(entry) for entry in meta["output_top_logprobs"][:new]] if likeliest else (),
    )


def _pairs(entry: list | None) -> list[tuple[int, float]]:
    """Returns (id, log-probability) of SGLang's (log-probability, id, text), without impossible tokens."""
    return [(token_id, logprob) for logprob, token_id, _ in entry or () if logprob > IMPOSSIBLE]
