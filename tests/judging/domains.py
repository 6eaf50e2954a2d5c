"""Domains whose responses are judged by the service, for miniature runs."""

import time

from pipelinerl.domains.base import Problem, Verified
from pipelinerl.judging.verifiers import Verifier
from pipelinerl.judging.wire import Judgement


class SlowlyJudged(Verified):
    """Answers of an even length are right; to find out takes `seconds`."""

    name = "slowly"
    train_size = 1000
    heldout_size = 64

    def __init__(self, seed: int, seconds: float):
        super().__init__({"_target_": "tests.judging.domains.Slow", "seconds": seconds})

    def train_problem(self, index: int) -> Problem:
        return Problem(f"train-{index}", [{"role": "user", "content": f"{index}"}], data=index)

    def heldout_problem(self, index: int) -> Problem:
        return Problem(f"heldout-{index}", [{"role": "user", "content": f"h{index}"}], data=index)


class Slow(Verifier):
    def __init__(self, seconds: float):
        self._seconds = seconds

    def judge(self, task: int, answer: str) -> Judgement:
        time.sleep(self._seconds)
        right = len(answer) % 2 == 0
        return Judgement(float(right), right, "right" if right else "wrong")
