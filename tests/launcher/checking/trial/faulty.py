"""Parts of a user's with one mistake each, and unusual ones without any."""

import os
import sys
import threading

import numpy as np
import torch

from pipelinerl.domains.base import Attempt, Domain, Problem, Verified
from pipelinerl.judging.verifiers import Verifier
from pipelinerl.judging.wire import Judgement
from pipelinerl.samplers.base import Sampler


def loss_of(scores, batch):
    return -(batch.advantages * scores.logprobs * batch.loss_weights).sum()


def term(compute):
    """Returns the class of an objective that gives what `compute(scores, batch)` gives."""
    return type("Term", (), {"__module__": __name__, "__call__": lambda self, s, b: compute(s, b)})


Vector = term(lambda s, b: (s.logprobs * b.advantages, {}))
OfOne = term(lambda s, b: (loss_of(s, b).view(1), {}))
NotFinite = term(lambda s, b: (loss_of(s, b) / 0, {}))
PythonFloat = term(lambda s, b: (loss_of(s, b).item(), {}))
Detached = term(lambda s, b: (loss_of(s, b).detach(), {}))
Unrelated = term(lambda s, b: (torch.ones((), requires_grad=True) * 2, {}))
RootOfZero = term(lambda s, b: ((s.logprobs - s.logprobs.detach()).sum().abs().sqrt(), {}))
NoReturn = term(lambda s, b: None)
LossAlone = term(lambda s, b: loss_of(s, b))
FloatSum = term(lambda s, b: (loss_of(s, b), {"mine": 1.0}))
VectorSum = term(lambda s, b: (loss_of(s, b), {"mine": s.logprobs}))
ListOfSums = term(lambda s, b: (loss_of(s, b), [s.logprobs.sum()]))
TakenSum = term(lambda s, b: (loss_of(s, b), {"entropy": s.entropy.sum()}))
Misspelt = term(lambda s, b: (loss_of(s, b).backwards(), {}))
UnknownName = term(lambda s, b: (lss_of(s, b), {}))  # noqa: F821
MoreArguments = type("MoreArguments", (), {"__call__": lambda self, scores: None})
Mean = term(lambda s, b: (-(b.advantages * s.logprobs).mean(), {}))
Weightless = term(lambda s, b: (loss_of(s, b) * 0.0, {}))
Right = term(lambda s, b: [loss_of(s, b), {"mine": s.entropy.sum()}])
InPlace = term(lambda s, b: (loss_of(s, b) + s.entropy.mul_(0.1).sum(), {}))
Reversed = term(lambda s, b: (-loss_of(s, b), {}))
ClampsBatch = term(lambda s, b: (b.advantages.clamp_(-0.1, 0.1).sum() * 0 + loss_of(s, b), {}))
Measure = term(lambda s, b: (torch.zeros(()), {"mine": s.entropy.sum().detach()}))


def part(compute, **attributes):
    """Returns the class of a part that gives what `compute` gives."""
    calls = {"__module__": __name__, "__call__": lambda self, *given: compute(*given)}
    return type("Part", (), calls | {"reason": "mine", "name": "mine", "whole_step": False} | attributes)


TooFew = part(lambda rewards: rewards[1:])
Words = part(lambda rewards: rewards.astype(str))
Objects = part(lambda rewards: rewards.astype(object))
WithNan = part(lambda rewards: rewards / rewards)
OneNumber = part(lambda rewards: rewards.mean())
Rounded = part(lambda rewards: (rewards - rewards.mean()).astype(int))
Lowering = part(lambda rewards: rewards.mean() - rewards)
Signs = part(lambda rewards: np.where(rewards > rewards.mean(), 1, -1))
AsTensor = part(lambda rewards: torch.from_numpy(rewards) - 0.5)
ScaledToNothing = part(lambda rewards: rewards, over_step=lambda self, advantages: advantages[:1])

Floats = part(lambda rollouts, advantages: [float(a.sum()) for a in advantages])
OneBool = part(lambda rollouts, advantages: True)
Zeros = part(lambda rollouts, advantages: np.ones(len(rollouts), int))
Raising = part(lambda rollouts, advantages: {}["difficulty"])
Clipping = part(lambda rollouts, advantages: [bool(a.clip(-0.1, 0.1, out=a).any()) for a in advantages])
ListOfBools = part(lambda rollouts, advantages: [r.metrics["of_my_domain"] < 1 for r in rollouts])

Nothing = part(lambda rollouts, version: None)
Nan = part(lambda rollouts, version: np.full(len(rollouts), np.nan))
Text = part(lambda rollouts, version: ["1.0"] * len(rollouts))
Lists = part(lambda rollouts, version: [r.sampled_tokens for r in rollouts])
Hanging = part(lambda rollouts, version: threading.Event().wait())
Exiting = part(lambda rollouts, version: os._exit(0))
Leaving = part(lambda rollouts, version: sys.exit(3))
Crashing = part(lambda rollouts, version: os.abort())


class Threaded:
    """Leaves a process, and a thread that never ends, and prints."""

    name = "threaded"

    def __call__(self, rollouts, version):
        print("noise")
        threading.Thread(target=threading.Event().wait).start()
        if os.fork() == 0:
            threading.Event().wait()
        return np.zeros(len(rollouts))


class Sums(Verified):
    name = "sums"
    train_size = 3
    heldout_size = 256

    def __init__(self, seed: int, verifier: str):
        super().__init__({"_target_": f"{__name__}.{verifier}"})

    def train_problem(self, index: int) -> Problem:
        return Problem(f"{index}", [{"role": "user", "content": f"{index}"}], data=index)

    heldout_problem = train_problem


class Careless(Domain):
    """A domain whose rollout has `mistake`."""

    name = "careless"
    train_size = heldout_size = 256

    def __init__(self, seed: int, mistake: str):
        self._mistake = mistake

    def train_problem(self, index: int) -> Problem:
        return Problem(f"{index}", [{"role": "user", "content": f"{index}"}], data=index)

    heldout_problem = train_problem

    async def rollout(self, client, problem):
        answer = await client.chat(problem.messages)
        match self._mistake:
            case "typo":
                return answer.txt
            case "none":
                return None
            case "nan":
                return Attempt([answer.completion], float("nan"), False)
            case "endless":
                while "DONE" not in answer.text:
                    answer = await client.chat(problem.messages, after=answer)
            case "of the environment":
                raise ConnectionError("no sandbox")
        return Attempt([answer.completion], 1.0, True)


class Empty(Verifier):
    pass


class Unwritten(Verifier):
    def judge(self, task, answer): ...


class Bool(Verifier):
    def judge(self, task, answer):
        return answer == str(task)


class NanReward(Verifier):
    def judge(self, task, answer):
        return Judgement(float("nan"), False, "wrong")


class NumpyBool(Verifier):
    def judge(self, task, answer):
        return Judgement(1.0, np.bool_(True), "right")


class Typo(Verifier):
    def judge(self, task, answer):
        return Judgement(float(answr == task), True, "right")  # noqa: F821


class Strict(Verifier):
    """Raises for what is no number, and judges the rest."""

    def judge(self, task, answer):
        return Judgement(float(int(answer) == task), True, "right")


class Drawn(Sampler):
    """A sampler that draws what `problems` has, and then no more."""

    def __init__(self, domain, seed, problems):
        super().__init__(domain, seed)
        self._problems = iter(problems)

    def next(self, version):
        return next(self._problems)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class NumpyState(Drawn):
    def next(self, version):
        return 0

    def state_dict(self):
        return {"seen": np.zeros(3)}
