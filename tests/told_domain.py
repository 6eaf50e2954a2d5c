"""A domain for tests whose reference sees one short prompt, whatever the problem."""

from dataclasses import replace

import msgspec
import numpy as np

from pipelinerl.domains.base import Attempt, ChatClient, Problem
from tests.scripted_domain import ScriptedDomain

TOLD = np.array([1, 2], dtype=np.int32)


class ToldDomain(ScriptedDomain):
    informs_reference = True

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        attempt = await super().rollout(client, problem)
        told = [msgspec.structs.replace(c, reference_prompt=TOLD) for c in attempt.completions]
        return replace(attempt, completions=told)
