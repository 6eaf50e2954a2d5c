"""Checks the tokens of a request that ran while weights changed.

Tokens before the first change come from the weights that their label names. After a change with `recompute`,
the new weights have read all earlier tokens. After a change with `keep`, the new weights continue from keys
and values of the older weights. Then the old weights may have read the last token before the change or not.
After a preemption, newer weights may read the request again or not. All combinations are accepted.
"""

from collections.abc import Mapping

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.kept_cache import KeptCache, Part
from contracts.conformance.inference.samples import Sample
from contracts.conformance.verdicts import GuaranteeError

ENOUGH = 8  # tokens after a change that suffice to tell old weights from new ones


class Crossing:
    """Compares requests with the weights of every span. modes: version -> `kv_cache`."""

    def __init__(self, bench: Bench, modes: Mapping[int, str]):
        self.bench = bench
        self.modes = modes
        self.cache = KeptCache(bench.reference)
        self._late = False  # True if the last token before a change had been read, in the last request

    def check(self, sample: Sample, where: str) -> float:
        """Returns the largest error, in nats. Raises GuaranteeError beyond the tolerance."""
        for late in (self._late, not self._late):
            try:
                worst = _Reader(self, sample, late, where).check()
            except GuaranteeError as error:
                failed = error
            else:
                self._late = late
                return worst
        raise failed


class _Reader:
    """One request. late: the older weights had read its last token before each change."""

    def __init__(self, crossing: Crossing, sample: Sample, late: bool, where: str):
        self.crossing = crossing
        self.bench = crossing.bench
        self.sample = sample
        self.late = late
        self.where = where
        self._expected: dict[int, torch.Tensor] = {}

    def check(self) -> float:
        worst = 0.0
        since = 0  # earliest span whose weights have computed keys and values in the cache
        for k, (version, start, end) in enumerate(self.sample.spans):
            if self.crossing.modes.get(version) == "recompute":
                since = k
            if since < k:
                self._not_old(k)
                if not self.crossing.cache.continues:
                    continue
                # If the last token had been read, a mixture of weights computed the first token of the span.
                start += int(self.late)
            since, error = self._span(k, since, range(start, end))
            worst = max(worst, error)
        return worst

    def _span(self, k: int, since: int, positions: range) -> tuple[int, float]:
        """Returns `since` at the end of span `k` (preemptions change it), and the largest error in nats."""
        worst = 0.0
        kept = since
        for i in positions:
            while (error := self._error(i, since)) > self.bench.settings.tolerance:
                since += 1
                if since > k:  # no one reading explains all tokens of the span
                    for reading in (kept, k):
                        self.bench.check_positions(self.sample, self._reading(reading), self.where, [i])
            worst = max(worst, error)
        return since, worst

    def _error(self, i: int, since: int) -> float:
        error = abs(self.sample.logprobs[i] - float(self._reading(since)[i]))
        return error if error == error else torch.inf

    def _reading(self, since: int) -> torch.Tensor:
        """Returns `[tokens]` log-probabilities if span `since` has read all earlier tokens again."""
        if since not in self._expected:
            self._expected[since] = self._read(since)
        return self._expected[since]

    def _read(self, since: int) -> torch.Tensor:
        spans = self.sample.spans[since:]
        prompt = self.sample.prompt_token_ids
        ids = self.sample.token_ids
        if len(spans) == 1 or not self.crossing.cache.continues:
            return self.bench.reference.logprobs(self.bench.weights(spans[0][0]), prompt, ids)
        read = len(prompt) if self.late else len(prompt) - 1
        parts: list[Part] = [(self.bench.weights(version), read + end) for version, _, end in spans[:-1]]
        last = (self.bench.weights(spans[-1][0]), len(prompt) + len(ids))
        return self.crossing.cache.logprobs([*parts, last], prompt, ids)

    def _not_old(self, k: int) -> None:
        """Checks that the tokens of span `k` do not come from the weights before the change."""
        version, start, end = self.sample.spans[k]
        older = self.sample.spans[0][0]
        if k != 1 or end - start < ENOUGH:
            return
        old = self.bench.reference.logprobs(
            self.bench.weights(older), self.sample.prompt_token_ids, self.sample.token_ids
        )
        if self.bench.distance(self.sample, old, range(start, end)) <= self.bench.settings.tolerance:
            raise GuaranteeError(
                f"all {end - start} tokens labelled {version} were sampled by version {older}",
                "kept keys and values may be old; the weights may not",
                self.where,
            )
