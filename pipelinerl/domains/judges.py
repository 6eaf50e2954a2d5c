"""The judging service of a domain: its options, and its clients."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipelinerl.domains.base import Domain
from pipelinerl.errors import PlanError
from pipelinerl.errors.first_failures import FirstFailures
from pipelinerl.judging.child import judging_service
from pipelinerl.judging.client import SOCKET_VARIABLE, JudgingClient
from pipelinerl.judging.options import JudgingConfig


def judging_of(options: JudgingConfig, domain: Domain) -> JudgingConfig:
    """Returns the options with the domain's verifiers added. Raises PlanError if one is not configured."""
    own = {name: dict(spec) for name, spec in domain.verifiers.items() if spec}
    if missing := sorted(domain.verifiers.keys() - own.keys() - options.verifiers.keys()):
        raise PlanError(
            f"the domain {domain.name} names the verifier {missing[0]}: set "
            f"judging.verifiers.{missing[0]} to the _target_ of its class and its options"
        )
    return JudgingConfig.model_validate(options.model_dump() | {"verifiers": options.verifiers | own})


def build_judge(options: JudgingConfig) -> JudgingClient | None:
    """Returns the client of the run's judging service, or None if there are no verifiers."""
    if not options.verifiers:
        return None
    return JudgingClient(os.environ[SOCKET_VARIABLE], options, FirstFailures("judgements"))


@asynccontextmanager
async def judge_of(
    domain: Domain, options: JudgingConfig | None = None
) -> AsyncIterator[JudgingClient | None]:
    """Starts a judging service for the block of a command, and yields its client, or None without verifiers.

    In a run the launcher starts the service instead. Raises JudgingEndedError.
    """
    complete = judging_of(options or JudgingConfig(), domain)
    if not complete.verifiers:
        yield None
        return
    async with judging_service(complete) as judge:
        yield judge
