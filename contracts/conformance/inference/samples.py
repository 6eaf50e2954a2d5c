"""Answers to generation requests, taken apart.

One that lacks what the contract promises is `Broken` here, so that checks read plain values.
"""

from dataclasses import dataclass

from contracts.conformance.verdicts import Broken


@dataclass(frozen=True)
class Sample:
    """One choice of a completion."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]  # of each token
    spans: list[tuple[int, int, int]]  # (version, start, end)
    finish_reason: str
    text: str

    @property
    def versions(self) -> list[int]:
        """The label of each token."""
        return [version for version, start, end in self.spans for _ in range(start, end)]


def samples(answer: dict) -> list[Sample]:
    """The choices of a completion that asked for log-probabilities, taken apart and counted."""
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
            raise Broken(
                f"a choice without {error}: it has {sorted(choice)}, the answer has {sorted(answer)}",
                "prompt_token_ids beside the choices; token_ids, logprobs.content[i].logprob and "
                "weight_versions in each",
                "complete any prompt with logprobs: true",
            ) from error
        check_counts(sample)
        found.append(sample)
    return found


def check_counts(sample: Sample) -> None:
    """One log-probability and one label a token; versions never go back."""
    if len(sample.logprobs) != len(sample.token_ids):
        raise Broken(
            f"{len(sample.token_ids)} token_ids, {len(sample.logprobs)} log-probabilities",
            "one log-probability for every sampled token, end-of-sequence included",
            f"complete {sample.prompt_token_ids} with logprobs: true",
        )
    ends = [0, *(end for _, _, end in sample.spans)]
    covers = all(start == before < end for (_, start, end), before in zip(sample.spans, ends, strict=False))
    versions = [version for version, _, _ in sample.spans]
    if not covers or ends[-1] != len(sample.token_ids) or versions != sorted(set(versions)):
        raise Broken(
            f"weight_versions {sample.spans} for {len(sample.token_ids)} tokens",
            "half-open spans that cover every sampled token exactly once, with growing versions",
            f"complete {sample.prompt_token_ids} with logprobs: true",
        )
