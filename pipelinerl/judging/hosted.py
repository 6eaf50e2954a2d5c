"""Verifiers that run in the judging service, because they start confined processes of their own."""

import abc

from pipelinerl.judging.isolation import Level
from pipelinerl.judging.making import made_of
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.wire import Judgement


class HostedVerifier(abc.ABC):
    """Base class of verifiers in the service. The constructor receives the configured options.

    It must evaluate nothing of a text or a task in this process, and take time linear in what it parses. Its
    specification has `_hosted_`, the longest seconds of a verdict.
    """

    at_once: int | None = None  # questions that it judges at once; None = `judging.workers`, with the others

    @abc.abstractmethod
    async def start(self, level: Level) -> None:
        """Starts what it needs, confined at this level. Raises TemplateError with the reason."""

    @property
    def level(self) -> str:
        """What the started verifier says of its isolation, beside the workers' level; "" if nothing."""
        return ""

    @abc.abstractmethod
    async def judged(self, task: bytes, text: str) -> Judgement:
        """Returns the judgement. Raises VerifierError for a task that it cannot read, and WorkerLostError.

        It is cancelled if nobody waits for the judgement any more.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends what it has started."""


def hosted_of(options: JudgingConfig) -> dict[str, HostedVerifier]:
    """Returns the hosted verifiers by name. Raises ValueError if one cannot be made."""
    made = {}
    for name, spec in options.hosted.items():
        made[name] = made_of(name, spec, HostedVerifier)  # type: ignore[type-abstract]
    return made
