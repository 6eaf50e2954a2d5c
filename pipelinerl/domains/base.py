"""The base classes of domains, and the types that a domain exchanges with a rollout.

A new domain is one file with a subclass of `Domain`, one config file, and one test.
"""

from __future__ import annotations

import abc
import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from contracts.records import Completion
from contracts.tool_calls import ToolCall
from pipelinerl.judging.wire import Judgement

if TYPE_CHECKING:
    from pipelinerl.conversations.base import Conversation, Option, Parsed

log = logging.getLogger(__name__)
OPEN_S = 300.0  # longest time to open a domain, which may start sandboxes or fetch data
DIGESTED = 64  # training problems that the default digest covers
CLOSE_S = 5.0  # longest time to close a domain; less than the default of `world.stop_timeout_s`


@dataclass(frozen=True)
class Problem:
    problem_id: str
    messages: list[dict[str, str]]  # the conversation that opens the attempt
    data: Any = None  # input of the judge, any object
    domain: str | None = None  # name of the part of a mixture, or of the data set, that it is from
    tools: list[dict] | None = None  # tools that the model may call, in the format of OpenAI's API
    template: Mapping[str, Option] | None = None  # options of the chat template
    expected: str | None = None  # the right answer, for people who read the run


@dataclass(frozen=True)
class Answer:
    """One completion of the model under training, as text and as tokens.

    If it calls tools, `text` is the text before the calls. The tokens contain the calls as sampled. A thought
    is in `text` if the model writes it as text. asked, parsed: what the client needs for the next turn.
    """

    text: str
    completion: Completion
    tool_calls: Sequence[ToolCall] = ()
    asked: Conversation | None = None
    parsed: Parsed | None = None

    @property
    def thought(self) -> str:
        """The thought alone; "" if there is none, or the model has no tokenizer."""
        return self.parsed.thought if self.parsed else ""


@dataclass(frozen=True)
class Attempt:
    """A judged attempt at a problem: the result of a domain's `rollout`."""

    completions: list[Completion]
    reward: float
    success: bool  # counted by held-out success
    reward_components: dict[str, float] = field(default_factory=dict)  # their sum is `reward`
    turn_rewards: list[float] = field(default_factory=list)  # one per completion, included in `reward`
    metrics: dict[str, float] = field(default_factory=dict)  # recorded; `reward_components` are the run's
    is_truncated: bool | None = None  # None = True if the last answer reached its limit
    reason: str = ""  # why it has this reward, for people who read the run


class AttemptFailedError(Exception):
    """An attempt failed, for a reason that has a name in the rollout's status: failed:<name>."""

    def __init__(self, name: str, words: str = ""):
        super().__init__(words or name)
        self.name = name


def judged_attempt(completions: list[Completion], judgement: Judgement) -> Attempt:
    """Returns the attempt of completions with their judgement. A metric counts an undecided judgement."""
    why = {f"judged_{judgement.outcome.replace(':', '_')}": 1.0} if judgement.word == "undecided" else {}
    return Attempt(
        completions=completions,
        reward=judgement.reward,
        success=judgement.success,
        reward_components=judgement.components,
        metrics=judgement.metrics | why,
        reason="; ".join(filter(None, [judgement.outcome, judgement.reason])),
    )


class ChatClient(Protocol):
    """The model under training and the judge of its answers, as a rollout sees them.

    The run's configuration sets the sampling parameters.
    """

    async def chat(
        self,
        messages: list[dict[str, str]],
        after: Answer | None = None,
        tools: list[dict] | None = None,
    ) -> Answer:
        """Returns the answer to a conversation; with `after`, to the messages that follow that answer.

        The prompt keeps all tokens up to `after` unchanged, unless the chat template removes a thought
        (`model.old_thoughts`). If `tools` are given, the conversation's first turn shows them to the model,
        and calls in the answer are parsed. An answer that exceeds the attempt's time ends as at the token
        limit; it has no token if no time was left after `after`.
        """
        ...

    async def completion_of(self, messages: list[dict[str, str]], answer: str) -> Completion:
        """Returns a given answer to a conversation as a completion, which has tokens but was not sampled."""
        ...

    async def prompt_of(self, messages: list[dict[str, str]]) -> list[int]:
        """Returns the token ids of a conversation's prompt, for `Completion.reference_prompt`."""
        ...

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        """Returns the judgement of one of the domain's verifiers on a text of the model.

        `task` is the verifier's input. The attempt holds no request slot while it waits, and the wait does
        not count towards its timeout.
        """
        ...


def digest_of(texts: Iterable[str]) -> str:
    """Returns 12 hexadecimal digits of the SHA-256 of the texts, in their order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))
    return digest.hexdigest()[:12]


def _as_json(data: Any) -> str:
    """Returns data as JSON, with class names in place of objects that JSON cannot represent."""
    try:
        return json.dumps(data, sort_keys=True, default=lambda part: type(part).__name__)
    except (TypeError, ValueError):  # keys that are not strings, or a cycle
        return type(data).__name__


class Domain(abc.ABC):
    name: str
    train_size: int  # problems 0 .. train_size - 1
    heldout_size: int
    fetches = False  # True if problems are downloaded or generated at their first use
    makes = False  # True if `fetches` generates them on this machine, without a network, within seconds
    needs: frozenset[str] = frozenset()  # capabilities of the inference contract that rollouts need
    programs: int | None = (
        None  # programs at once that make the rollouts, between their requests; None = none
    )
    informs_reference = False  # True if completions have a `reference_prompt`
    demonstrated: int = 0  # given answers per training problem that replace samples; 0 = samples

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        """The verifiers of answers, by name: `_target_`, the path of a class, and its options.

        A name without a specification refers to `judging.verifiers`. The judging service creates the
        verifiers in confined processes. Code of the domain itself runs in the actor, which has the run's
        secrets, and blocks all rollouts; it must not evaluate a model's text.
        """
        return {}

    @property
    def parts(self) -> dict[str, range]:
        """The domains that this one combines, by name, with their training problems."""
        return {self.name: range(self.train_size)}

    def difficulty(self, index: int) -> float:
        """Returns the training problem's label for curricula; larger is harder."""
        raise ValueError(f"domain {self.name} has no difficulty labels")

    def longest_problems(self, count: int) -> list[int]:
        """Returns up to `count` training problems whose prompts are probably the longest, by index.

        The launcher checks the lengths of these prompts. By default they are the first problems.
        """
        return list(range(min(count, self.train_size)))

    def longest_heldout(self, count: int) -> list[int]:
        """Returns up to `count` held-out problems whose prompts are probably the longest, by index."""
        return list(range(min(count, self.heldout_size)))

    def digest(self) -> str:
        """Returns a digest of the training problems. A run resumes only if it is unchanged.

        By default it covers the ids and data of up to 64 evenly spaced problems. It excludes their messages,
        which may contain the date or random examples.
        """
        step = max(1, self.train_size // DIGESTED)
        problems = map(self.train_problem, range(0, self.train_size, step))
        return digest_of(f"{problem.problem_id}\0{_as_json(problem.data)}" for problem in problems)

    def plan_notes(self) -> Iterator[str]:
        """Yields lines on the problems for the plan (`plan=true`), such as which were left out and why."""
        return iter(())

    @abc.abstractmethod
    def train_problem(self, index: int) -> Problem: ...

    @abc.abstractmethod
    def heldout_problem(self, index: int) -> Problem:
        """Returns a problem that is not a training problem."""

    @abc.abstractmethod
    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt: ...

    async def open(self) -> None:  # noqa: B027 - most domains own nothing
        """Opens resources that rollouts share, such as an HTTP client or a pool of sandboxes.

        The actor calls it once, in the event loop of the rollouts, before the first one. Processes that only
        read problems do not call it.
        """

    async def close(self) -> None:  # noqa: B027
        """Closes the resources of `open`. Called once if `open` returned, also after an error."""


@asynccontextmanager
async def opened(domain: Domain) -> AsyncIterator[None]:
    """Keeps a domain open for the block. Raises TimeoutError if it does not open within OPEN_S.

    If the domain does not close within CLOSE_S, or raises, that is only logged.
    """
    try:
        async with asyncio.timeout(OPEN_S):
            await domain.open()
    except TimeoutError as error:
        raise TimeoutError(f"the domain {domain.name} has not opened within {OPEN_S:.0f} s") from error
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(CLOSE_S):
                await domain.close()
        except Exception:
            log.exception("the domain %s has not closed", domain.name)


class Verified(Domain):
    """Base class of single-turn domains whose answers one verifier judges, with `Problem.data` as its task.

    verifier: `_target_`, the path of its class, and its options; or a name in `judging.verifiers`.
    """

    def __init__(self, verifier: Mapping[str, Any] | str):
        self._verifier = verifier

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return {self._verifier: {}} if isinstance(self._verifier, str) else {self.name: self._verifier}

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        return judged_attempt([answer.completion], await self.judged(client, problem, answer.text))

    async def judged(self, client: ChatClient, problem: Problem, text: str) -> Judgement:
        (name,) = self.verifiers
        return await client.judged(name, problem.data, text)
