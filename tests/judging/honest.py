"""Asks for judgements of honest answers where the service has a short limit of time."""

from typing import Any

from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.wire import Judgement, undecided


async def judged_at_last(judge: JudgingClient, verifier: str, task: Any, text: str) -> Judgement:
    """Returns the first judgement that the limit of time did not prevent, as it may on a slow machine."""
    while (judgement := await judge.judged(verifier, task, text)) == undecided("time"):
        continue
    return judgement
