"""Parses responses to generation requests. Raises GuaranteeError if a field of the contract is missing."""

import math
from dataclasses import dataclass
from typing import Any

from contracts.conformance.verdicts import GuaranteeError


@dataclass(frozen=True)
class Sample:
    """One choice of a completion."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]  # of each token, in nats
    spans: list[tuple[int, int, int]]  # (version, start, end), one span for each version
    finish_reason: str
    text: str
    commitments: object = None  # as they came

    @property
    def versions(self) -> list[int]:
        """The version that labels each token."""
        return [version for version, start, end in self.spans for _ in range(start, end)]


def samples(answer: dict[str, Any]) -> list[Sample]:
    """Returns the choices of a response with log-probabilities, and checks their counts."""
    if not isinstance(answer.get("prompt_token_ids"), list):
        raise GuaranteeError(
            f"an answer without prompt_token_ids: it has {sorted(answer)}",
            "prompt_token_ids beside the choices; in a stream, on its first chunk",
            "complete any prompt with logprobs: true",
        )
    found = []
    for choice in sorted(answer["choices"], key=lambda choice: choice.get("index", 0)):
        try:
            text = choice["message"].get("content") if "message" in choice else choice["text"]
            sample = Sample(
                prompt_token_ids=answer["prompt_token_ids"],
                token_ids=choice["token_ids"],
                logprobs=[item["logprob"] for item in choice["logprobs"]["content"]],
                spans=_merged([(s["version"], s["start"], s["end"]) for s in choice["weight_versions"]]),
                finish_reason=choice["finish_reason"],
                text=text or "",
                commitments=choice.get("commitments"),
            )
        except (KeyError, TypeError) as error:
            raise GuaranteeError(
                f"a choice without {error}: it has {sorted(choice)}",
                "token_ids, logprobs.content[i].logprob and weight_versions in each choice",
                "complete any prompt with logprobs: true",
            ) from error
        check_counts(sample)
        found.append(sample)
    return found


def _merged(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Merges consecutive spans of one version, which a server may list separately."""
    joined: list[tuple[int, int, int]] = []
    for version, start, end in spans:
        if joined and joined[-1][0] == version and joined[-1][2] == start <= end:
            joined[-1] = (version, joined[-1][1], end)
        else:
            joined.append((version, start, end))
    return joined


def check_counts(sample: Sample) -> None:
    """Checks that every token has one log-probability and one label, and that versions never decrease."""
    if len(sample.logprobs) != len(sample.token_ids):
        raise GuaranteeError(
            f"{len(sample.token_ids)} token_ids, {len(sample.logprobs)} log-probabilities",
            "one log-probability for every sampled token, end-of-sequence included",
            f"complete {sample.prompt_token_ids} with logprobs: true",
        )
    wrong = [value for value in sample.logprobs if not _is_logprob(value)]
    if wrong:
        raise GuaranteeError(
            f"a log-probability of {wrong[0]!r}",
            "a finite number of nats, not above 0",
            f"complete {sample.prompt_token_ids} with logprobs: true",
        )
    ends = [0, *(end for _, _, end in sample.spans)]
    covers = all(start == before < end for (_, start, end), before in zip(sample.spans, ends, strict=False))
    versions = [version for version, _, _ in sample.spans]
    if not covers or ends[-1] != len(sample.token_ids) or versions != sorted(set(versions)):
        raise GuaranteeError(
            f"weight_versions {sample.spans} for {len(sample.token_ids)} tokens",
            "half-open spans that cover every sampled token exactly once, with growing versions",
            f"complete {sample.prompt_token_ids} with logprobs: true",
        )


def _is_logprob(value: object) -> bool:
    """Returns True if `value` is the logarithm of a probability, up to rounding."""
    return isinstance(value, int | float) and math.isfinite(value) and value < 1e-3


def streamed(chunks: list[dict[str, Any]]) -> list[Sample]:
    """Returns the choices of a streamed completion."""
    prompt = chunks[0].get("prompt_token_ids") if chunks else None
    if not isinstance(prompt, list):
        raise GuaranteeError(
            f"a stream whose first chunk is {str(chunks[:1])[:300]}",
            "prompt_token_ids on the first chunk",
            "stream a completion",
        )
    parts: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    return samples(
        {"prompt_token_ids": prompt, "choices": [_joined(parts[index]) for index in sorted(parts)]}
    )


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges the chunks of one choice."""
    final: dict[str, Any] = next((part for part in reversed(parts) if part.get("finish_reason")), {})
    if "weight_versions" not in final:
        raise GuaranteeError(
            f"the chunk with finish_reason has {sorted(final)}",
            "weight_versions on it",
            "stream a completion",
        )
    texts = [part["delta"].get("content") if "delta" in part else part["text"] for part in parts]
    contents = [part["logprobs"].get("content") for part in parts if part.get("logprobs")]
    return {
        "text": "".join(text or "" for text in texts),
        "token_ids": [token_id for part in parts for token_id in part.get("token_ids") or []],
        "logprobs": {"content": [item for content in contents for item in content or []]},
        "weight_versions": final["weight_versions"],
        "finish_reason": final["finish_reason"],
        "commitments": final.get("commitments"),
    }
