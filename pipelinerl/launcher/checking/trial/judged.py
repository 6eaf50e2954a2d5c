"""Tries a domain and its verifiers: one rollout with a made-up model, and judgements of made-up answers.

What a rollout makes of a made-up answer says little, so only errors of its code count. A verifier must have a
judgement for any text.
"""

import asyncio
import math
import pickle
from typing import Any

import msgspec
import numpy as np

from contracts.records import Completion, unsampled
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Answer, Attempt, Domain, Problem, Wrapped
from pipelinerl.errors.part_faults import Happened, described
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.worker_messages import checked
from pipelinerl.launcher.checking.trial.calls import WrongError, expect
from pipelinerl.launcher.checking.trial.made_up import group_of

OF_CODE = (NameError, AttributeError)  # a misspelt name
MOST_TURNS = 16
LONGEST_S = 5.0  # that a rollout may wait for its environment
TEXTS = ("2", "= 2", r"The answer is \boxed{2}.", "<answer>2</answer>", "#### 2", "yes", "")


class EnoughError(BaseException):
    """The rollout has had its turns. It passes what catches every Exception."""


class MadeUpModel:
    """A client whose answers are made up. `tasks`: what its verifiers were given to know, by their names."""

    def __init__(self, config: RunConfig):
        (rollout,) = group_of(config, 1)
        (self._completion,) = rollout.completions
        self._turns = 0
        self.tasks: dict[str, Any] = {}
        self.texts: list[str] = []

    async def chat(
        self, messages: list[dict[str, str]], after: Answer | None = None, tools: list[dict] | None = None
    ) -> Answer:
        self._turns += 1
        if self._turns > MOST_TURNS:
            raise EnoughError
        return Answer(TEXTS[0], self._completion)

    async def completion_of(self, messages: list[dict[str, str]], answer: str) -> Completion:
        return unsampled([5, 6, 7], [8, 9])

    async def prompt_of(self, messages: list[dict[str, str]]) -> list[int]:
        return [5, 6, 7]

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        self.tasks.setdefault(verifier, task)
        self.texts.append(text)
        return Judgement(1.0, True, "right")


def call_problems(domain: Domain) -> Problem:
    """Returns the first problem. Checks it, and the first one that is held out."""
    for method in ("heldout_problem", "train_problem"):
        problem = getattr(domain, method)(0)
        expect(isinstance(problem, Problem), "a Problem", problem, method)
    return problem


def _opens(domain: Domain) -> bool:
    while isinstance(domain, Wrapped):
        domain = domain._domain
    return type(domain).open is not Domain.open


def call_rollout(domain: Domain, problem: Problem, config: RunConfig) -> MadeUpModel:
    """Has the domain make an attempt. Returns the client, which has heard what it asks its verifiers."""
    client = MadeUpModel(config)
    if _opens(domain):  # a rollout would need what it opens
        return client
    loop = asyncio.new_event_loop()  # never closed: that would wait for threads which wait for something
    try:
        attempt = loop.run_until_complete(asyncio.wait_for(domain.rollout(client, problem), LONGEST_S))
    except EnoughError:
        return client
    except OF_CODE as error:
        if isinstance(getattr(error, "obj", None), MadeUpModel):
            return client
        raise
    except Exception:
        return client
    expect(isinstance(attempt, Attempt), "an Attempt", attempt, "rollout")
    reward = attempt.reward
    is_number = isinstance(reward, int | float | np.floating | np.integer) and math.isfinite(reward)
    came = Happened(f"its reward is {described(reward)}")
    expect(is_number, "an Attempt with a finite reward", came, "rollout")
    return client


def call_verifier(verifier: Any, task: Any, texts: list[str]) -> None:
    """Checks judgements of made-up answers. A text alone may be beyond it, but not every one.

    texts: answers that a rollout has had judged.
    """
    failed = None
    has_judged = False
    for text in [*texts, *([str(task)] if isinstance(task, str | int | float) else []), *TEXTS]:
        try:
            judgement = _judgement_on(verifier, task, text)
        except (*OF_CODE, WrongError):
            raise
        except Exception as error:
            failed = failed or error
        else:
            has_judged = has_judged or judgement is not NO_ANSWER
            _check(judgement)
    if failed and not has_judged:
        raise failed


NO_ANSWER = Judgement(0.0, False, "no_answer")


def _judgement_on(verifier: Any, task: Any, text: str) -> object:
    answer = verifier.answer_in(text)
    expect(answer is None or isinstance(answer, str), "an answer as a string, or None", answer, "answer_in")
    return NO_ANSWER if answer is None else verifier.judge(pickle.loads(pickle.dumps(task)), answer)


def _check(judgement: object) -> None:
    expect(isinstance(judgement, Judgement), "a Judgement(reward, success, outcome)", judgement, "judge")
    expected = "a Judgement of a finite reward, a bool and a word"
    try:
        checked(msgspec.msgpack.decode(msgspec.msgpack.encode(judgement), type=Judgement))
    except (TypeError, ValueError) as error:
        expect(False, expected, Happened(f"in {described(judgement)}: {error}"), "judge")
