"""A domain: problems, and the async function that makes one attempt at a problem and judges it.

A new domain is one file with a class like this, one config file, and one test.
"""

import abc
import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.records import Completion
from contracts.tool_calls import ToolCall
from pipelinerl.judging.wire import Judgement

log = logging.getLogger(__name__)
OPEN_S = 300.0  # for a domain to open: it may start sandboxes, or fetch data
DIGESTED = 64  # training problems that a digest covers, unless the domain has its own
CLOSE_S = 5.0  # for a domain to close; less than `world.stop_timeout_s` by default


@dataclass(frozen=True)
class Problem:
    problem_id: str
    messages: list[dict[str, str]]  # the conversation that opens the attempt
    data: Any = None  # whatever the judge needs
    domain: str | None = None  # which of several it is from: a part of a mixture, a data set
    tools: list[dict] | None = None  # that the model may call, as OpenAI's API has them


@dataclass(frozen=True)
class Answer:
    """One completion of the model under training, as text and token for token.

    Where it calls tools, `text` is the text before the calls; the calls are in the tokens as they were
    sampled.
    """

    text: str
    completion: Completion
    tool_calls: Sequence[ToolCall] = ()


@dataclass(frozen=True)
class Attempt:
    """What a rollout makes of a problem."""

    completions: list[Completion]
    reward: float
    success: bool  # what held-out success counts
    reward_components: dict[str, float] = field(default_factory=dict)  # they add up to `reward`
    turn_rewards: list[float] = field(default_factory=list)  # of each completion, part of `reward`
    metrics: dict[str, float] = field(default_factory=dict)


def judged_attempt(completions: list[Completion], judgement: Judgement) -> Attempt:
    """Returns the attempt that a judgement makes of completions. A metric counts the undecided ones."""
    why = {f"judged_{judgement.outcome.replace(':', '_')}": 1.0} if judgement.word == "undecided" else {}
    return Attempt(
        completions=completions,
        reward=judgement.reward,
        success=judgement.success,
        reward_components=judgement.components,
        metrics=judgement.metrics | why,
    )


class ChatClient(Protocol):
    """The model under training, and the judge of what it says.

    Sampling parameters are the run's; they are not the domain's.
    """

    async def chat(
        self,
        messages: list[dict[str, str]],
        after: Answer | None = None,
        tools: list[dict] | None = None,
    ) -> Answer:
        """Returns the answer to a conversation; with `after`, to the messages that follow that answer.

        All tokens up to `after` stay as they are. Calls are looked for where `tools` are given, which the
        conversation's first turn shows to the model. An answer that the attempt's time cuts short ends as at
        the token limit. It has no token where `after` is all that there was time for.
        """
        ...

    async def completion_of(self, messages: list[dict[str, str]], answer: str) -> Completion:
        """Returns an answer to a conversation, in the model's tokens. Nobody sampled it."""
        ...

    async def prompt_of(self, messages: list[dict[str, str]]) -> list[int]:
        """Returns the token ids of a conversation's prompt, for `Completion.reference_prompt`."""
        ...

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        """Returns the judgement of one of the domain's verifiers on a text that the model wrote.

        `task` is what the verifier needs to know. The attempt waits without a place on a server, and its
        time stands still.
        """
        ...


def digest_of(texts: Iterable[str]) -> str:
    """Returns the first digits of a digest of the texts, in their order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))
    return digest.hexdigest()[:12]


def _as_json(data: Any) -> str:
    """Returns data as JSON, with the names of classes in place of what JSON does not have."""
    try:
        return json.dumps(data, sort_keys=True, default=lambda part: type(part).__name__)
    except (TypeError, ValueError):  # keys that are no texts, or a cycle
        return type(data).__name__


class Domain(abc.ABC):
    name: str
    train_size: int  # problems 0 .. train_size - 1
    heldout_size: int
    fetches = False  # whether problems come over the network, or are made, when they are first asked for
    makes = False  # whether those are made on this machine, without a network and within seconds
    needs: frozenset[str] = frozenset()  # capabilities of the inference contract that rollouts ask for
    informs_reference = False  # whether completions have prompts for the reference that say more
    demonstrated: int = 0  # answers to a training problem that it has itself, in place of samples

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        """What judges answers, by name: `_target_`, the path of a class, and its options.

        One without any is configured by its name, in `judging.verifiers`. The judging service makes them.
        What a domain itself runs on the text of a model is trusted. It runs in the actor, next to the run's
        secrets, and stops all other rollouts meanwhile.
        """
        return {}

    @property
    def parts(self) -> dict[str, range]:
        """The domains that this one is made of, by name, with their training problems."""
        return {self.name: range(self.train_size)}

    def difficulty(self, index: int) -> float:
        """A label of the training problem, for curricula; larger is harder."""
        raise ValueError(f"domain {self.name} has no difficulty labels")

    def longest_problems(self, count: int) -> list[int]:
        """Returns the indices of `count` training problems whose prompts are likely the longest.

        Their prompts are measured before a run. By default they are the first ones.
        """
        return list(range(min(count, self.train_size)))

    def longest_heldout(self, count: int) -> list[int]:
        """Returns the same of the held-out problems."""
        return list(range(min(count, self.heldout_size)))

    def digest(self) -> str:
        """Returns a digest of the training problems: a run is resumed only with those that it began with.

        By default it covers some of them, in equal distances: their ids, and their data as JSON has it. Their
        messages may tell the date, or show other examples at each start.
        """
        step = max(1, self.train_size // DIGESTED)
        problems = map(self.train_problem, range(0, self.train_size, step))
        return digest_of(f"{problem.problem_id}\0{_as_json(problem.data)}" for problem in problems)

    def plan_notes(self) -> Iterator[str]:
        """Yields lines for the plan (`plan=true`) on the problems, such as what was left out and why."""
        return iter(())

    @abc.abstractmethod
    def train_problem(self, index: int) -> Problem: ...

    @abc.abstractmethod
    def heldout_problem(self, index: int) -> Problem:
        """Never one of the training problems."""

    @abc.abstractmethod
    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt: ...

    async def open(self) -> None:  # noqa: B027 - most domains own nothing
        """Opens what rollouts share, such as an HTTP client or a pool of sandboxes.

        The process that makes rollouts calls it once, in the event loop of the rollouts and before the first
        of them. Processes that only read problems and sizes do not call it.
        """

    async def close(self) -> None:  # noqa: B027
        """Closes what `open` opened. It is called once if `open` returned, whatever ends the process."""


@asynccontextmanager
async def opened(domain: Domain) -> AsyncIterator[None]:
    """Keeps a domain open for the block.

    Raises TimeoutError, which names the domain, if it does not open within OPEN_S.

    A domain that fails to close, or takes longer than CLOSE_S, is logged and ends nothing: its work is done.
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
    """Base class of a domain of one turn, whose answers one verifier judges.

    verifier: `_target_`, the path of its class, and its options; or the name of one of `judging.verifiers`.
        It is given `Problem.data` as its task.
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
        """Returns the judgement of the verifier."""
        (name,) = self.verifiers
        return await client.judged(name, problem.data, text)


class Wrapped(Domain):
    """Base class of a domain that wraps another one.

    Every method delegates to the inner domain unless it is overridden.
    """

    def __init__(self, domain: Domain):
        self._domain = domain
        self.name = domain.name
        self.needs = domain.needs
        self.informs_reference = domain.informs_reference
        self.demonstrated = domain.demonstrated

    @property
    def fetches(self) -> bool:
        return self._domain.fetches

    @property
    def makes(self) -> bool:
        return self._domain.makes

    @property
    def train_size(self) -> int:
        return self._domain.train_size

    @property
    def heldout_size(self) -> int:
        return self._domain.heldout_size

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return self._domain.verifiers

    @property
    def parts(self) -> dict[str, range]:
        return self._domain.parts

    def difficulty(self, index: int) -> float:
        return self._domain.difficulty(index)

    def longest_problems(self, count: int) -> list[int]:
        return self._domain.longest_problems(count)

    def longest_heldout(self, count: int) -> list[int]:
        return self._domain.longest_heldout(count)

    def digest(self) -> str:
        return self._domain.digest()

    def plan_notes(self) -> Iterator[str]:
        return self._domain.plan_notes()

    def train_problem(self, index: int) -> Problem:
        return self._domain.train_problem(index)

    def heldout_problem(self, index: int) -> Problem:
        return self._domain.heldout_problem(index)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        return await self._domain.rollout(client, problem)

    async def open(self) -> None:
        await self._domain.open()

    async def close(self) -> None:
        await self._domain.close()
