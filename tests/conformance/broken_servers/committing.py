"""Broken servers. G18: commitments."""

from dataclasses import replace

import torch

from inference_adapters import completions, request_checks
from inference_adapters.scripted import NORM, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant

APART = "of the exponents differ"


@mutant("G18", APART, part="states")
class CommitsToRowsBeforeTheNorm(ScriptedEngine):
    def committed(self, prompt, rows):
        return super().committed(prompt, [row / self._weights[NORM] for row in rows])


@mutant("G18", APART, part="states")
class CommitsToRowsOfTheNextToken(ScriptedEngine):
    def committed(self, prompt, rows):
        return super().committed(prompt, [*rows[1:], rows[0]])


@mutant("G18", APART, part="states")
class CommitsToTheFirstRowTwice(ScriptedEngine):
    def committed(self, prompt, rows):
        return super().committed(prompt, [rows[0], rows[0], *rows[2:]])


@mutant("G18", APART, part="update")
class CommitsToAWrongFirstRow(ScriptedEngine):
    def committed(self, prompt, rows):
        return super().committed(prompt, [self.normed(self._states(prompt)[0]), *rows[1:]])


@mutant("G18", APART, part="states")
class CutsRowsToBfloat16(ScriptedEngine):
    """It does not round them."""

    def committed(self, prompt, rows):
        bits = torch.stack([*rows]).view(torch.int32) & -(2**16)
        return super().committed(prompt, [*bits.view(torch.float32)])


@mutant("G18", APART, part="states")
class CommitsToMagnitudes(ScriptedEngine):
    def committed(self, prompt, rows):
        return super().committed(prompt, [row.abs() for row in rows])


@mutant("G18", "bytes of proofs", part="states")
class CommitsToThePromptToo(ScriptedEngine):
    def committed(self, prompt, rows):
        return super().committed(prompt, [*self.normed(self._states(prompt)), *rows])


@mutant("G18", "None", part="states")
def forgets_the_commitments_of_streams(options):
    right = completions.Completion.chunks

    def forgetful(completion, index, delta):
        found = right(completion, index, delta)
        for chunk in found:
            chunk["choices"][0].pop("commitments", None)
        return found

    completions.Completion.chunks = forgetful


@mutant("G18", APART, part="update")
class CommitsWithTheLastVersion(ScriptedEngine):
    """It computes the rows of all tokens at the end of a completion."""

    async def _generate(self, prompt, sampling):
        ids = list(prompt)
        async for delta in super()._generate(prompt, sampling):
            ids += delta.token_ids
            if delta.commitments is not None:
                rows = self.normed(self._states(ids)[len(prompt) - 1 : -1])
                delta = replace(delta, commitments=self.committed(prompt, [*rows]))
            yield delta


@mutant("G18", "^200 ", part="refusals")
def commits_beside_no_log_probabilities(options):
    request_checks.check_commitments = lambda stop, has_logprobs: None
