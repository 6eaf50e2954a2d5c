"""Calls a domain and its verifiers: one rollout with a made-up model, and judgements of made-up answers.

A rollout may reject a made-up answer, so only errors in its code count. A verifier must judge any text.
"""

import asyncio
import math
import pickle
from typing import Any

import msgspec
import numpy as np

from contracts.records import Completion, unsampled
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Answer, Attempt, Domain, Problem
from pipelinerl.domains.wrapped import Wrapped
from pipelinerl.errors.part_faults import Happened, described
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.worker_messages import checked
from pipelinerl.launcher.checking.trial.sample_inputs import group_of
from pipelinerl.launcher.checking.trial.watch import WrongError, expect

CODE_ERRORS = (NameError, AttributeError)  # such as of a misspelt name
MOST_TURNS = 16
LONGEST_S = 5.0  # longest rollout, which may wait for its environment
TEXTS = ("2", "= 2", r"The answer is \boxed{2}.", "<answer>2</answer>", "#### 2", "yes", "")


class EnoughError(BaseException):
    """The rollout has made MOST_TURNS. A BaseException, so that the domain does not catch it."""


class MadeUpModel:
    """A client with made-up answers. `tasks`: by the verifier's name. `texts`: answers to be judged."""

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
    """Checks the first training problem and the first held-out one. Returns the training problem."""
    for method in ("heldout_problem", "train_problem"):
        problem = getattr(domain, method)(0)
        expect(isinstance(problem, Problem), "a Problem", problem, method)
    return problem


def _opens(domain: Domain) -> bool:
    while isinstance(domain, Wrapped) and type(domain).open is Wrapped.open:
        domain = domain._domain
    return type(domain).open is not Domain.open


def call_rollout(domain: Domain, problem: Problem, config: RunConfig) -> MadeUpModel:
    """Runs a rollout. Returns the client, with the tasks and texts of the verifiers."""
    client = MadeUpModel(config)
    if _opens(domain):  # a rollout needs what `open` opens
        return client
    loop = asyncio.new_event_loop()  # not closed, which would wait for its threads
    try:
        attempt = loop.run_until_complete(asyncio.wait_for(domain.rollout(client, problem), LONGEST_S))
    except EnoughError:
        return client
    except CODE_ERRORS as error:
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
    """Checks judgements of the rollout's and of made-up answers. A verifier may fail on some of them."""
    failed = None
    has_judged = False
    for text in [*texts, *([str(task)] if isinstance(task, str | int | float) else []), *TEXTS]:
        try:
            judgement = _judgement_on(verifier, task, text)
        except (*CODE_ERRORS, WrongError):
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
