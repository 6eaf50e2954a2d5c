"""Domain: sums asked in words, "What is 24 + 9? Reply with the number only."."""

import random

from pipelinerl.domains.base import Problem, Verified

VERIFIER = "extensions.real_model.verifiers.LastNumber"


class PlainSums(Verified):
    """The sums of a number and a digit. An answer is right if its last number is.

    largest: of the first number, which is 1 or more.
    heldout_size: number of sums that are never trained on, whatever the seed.
    seed: ignored.
    """

    name = "plain_sums"

    def __init__(self, largest: int = 99, heldout_size: int = 200, seed: int = 0):
        super().__init__({"_target_": VERIFIER})
        for name, value in {"largest": largest, "heldout_size": heldout_size}.items():
            if type(value) is not int:
                raise ValueError(f"{name}={value} is no whole number")
        self._sums = [(first, digit) for first in range(1, largest + 1) for digit in range(1, 10)]
        random.Random(self.name).shuffle(self._sums)
        self.heldout_size = heldout_size
        self.train_size = len(self._sums) - heldout_size
        if min(self.train_size, heldout_size) < 1:
            raise ValueError(
                f"largest={largest}, heldout_size={heldout_size}: some of {len(self._sums)} sums must be "
                "held out, and some trained on"
            )

    def train_problem(self, index: int) -> Problem:
        return self._problem(*self._sums[self.heldout_size + index])

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(*self._sums[index])

    def _problem(self, first: int, digit: int) -> Problem:
        content = f"What is {first} + {digit}? Reply with the number only."
        messages = [{"role": "user", "content": content}]
        total = str(first + digit)
        return Problem(f"{self.name}/{first}+{digit}", messages, total, expected=total)
