"""Parses responses to generation requests.

A response that lacks a field of the contract raises GuaranteeError here, so checks read plain values.
"""

from dataclasses import dataclass
from typing import Any

from contracts.conformance.verdicts import GuaranteeError


@dataclass(frozen=True)
class Sample:
    """One choice of a completion."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]  # the log-probability of each token, in nats
    spans: list[tuple[int, int, int]]  # (version, start, end)
    finish_reason: str
    text: str

    @property
    def versions(self) -> list[int]:
        """The label of each token."""
        return [version for version, start, end in self.spans for _ in range(start, end)]


def samples(answer: dict[str, Any]) -> list[Sample]:
    """Returns the choices of a completion that asked for log-probabilities, after checking their counts."""
    if not isinstance(answer.get("prompt_token_ids"), list):
        raise GuaranteeError(
            f"an answer without prompt_token_ids: it has {sorted(answer)}",
            "prompt_token_ids beside the choices; in a stream, on its first chunk",
            "complete any prompt with logprobs: true",
        )
    found = []
    for choice in answer["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"] or ""
        try:
            sample = Sample(
                prompt_token_ids=answer["prompt_token_ids"],
                token_ids=choice["token_ids"],
                logprobs=[item["logprob"] for item in choice["logprobs"]["content"]],
                spans=[(s["version"], s["start"], s["end"]) for s in choice["weight_versions"]],
                finish_reason=choice["finish_reason"],
                text=text,
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


def check_counts(sample: Sample) -> None:
    """Checks that every token has one log-probability and one label, and that versions never go back."""
    if len(sample.logprobs) != len(sample.token_ids):
        raise GuaranteeError(
            f"{len(sample.token_ids)} token_ids, {len(sample.logprobs)} log-probabilities",
            "one log-probability for every sampled token, end-of-sequence included",
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


def streamed(chunks: list[dict[str, Any]]) -> list[Sample]:
    """Returns the choices of a streamed completion. The first chunk has the prompt."""
    prompt = next((chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids")), None)
    parts: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    return samples(
        {"prompt_token_ids": prompt, "choices": [_joined(parts[index]) for index in sorted(parts)]}
    )


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the chunks of one choice as the choice of a complete response."""
    final: dict[str, Any] = next((part for part in reversed(parts) if part.get("finish_reason")), {})
    if "weight_versions" not in final:
        raise GuaranteeError(
            f"the chunk with finish_reason has {sorted(final)}",
            "weight_versions on it",
            "stream a completion",
        )
    texts = [part["text"] if "text" in part else part["delta"].get("content") for part in parts]
    contents = [part["logprobs"]["content"] for part in parts if part.get("logprobs")]
    return {
        "text": "".join(text or "" for text in texts),
        "token_ids": [token_id for part in parts for token_id in part.get("token_ids") or []],
        "logprobs": {"content": [item for content in contents for item in content]},
        "weight_versions": final["weight_versions"],
        "finish_reason": final["finish_reason"],
    }
