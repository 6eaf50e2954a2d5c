"""Domain: guess a number, with "higher" and "lower" as replies, in a conversation of several turns."""

import random
import re

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem

HELDOUT_ONE_IN = 8
NUMBER = re.compile(r"\s*(\d{1,9})\s*")


class Guessing(Domain):
    """Numbers to guess. An answer that is not a number ends the attempt.

    highest: the numbers are 1 to `highest`. A fixed eighth of them is held out.
    turns: maximum number of guesses. A binary search needs at most highest.bit_length().
    seed: ignored.
    """

    name = "guessing"

    def __init__(self, highest: int = 1024, turns: int = 11, seed: int = 0):
        if highest < 2 or turns < 1:
            raise ValueError(f"highest={highest}, turns={turns}: there is nothing to guess")
        numbers = list(range(1, highest + 1))
        random.Random(self.name).shuffle(numbers)
        held_out = max(1, highest // HELDOUT_ONE_IN)
        self._heldout = numbers[:held_out]
        self._train = numbers[held_out:]
        self.highest = highest
        self._turns = turns
        self.train_size = len(self._train)
        self.heldout_size = held_out

    def train_problem(self, index: int) -> Problem:
        return self._problem(self._train[index])

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(self._heldout[index])

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        """Returns the attempt. Metrics: turns (guesses)."""
        answers = [await client.chat(problem.messages)]
        while (reply := reply_to(answers[-1].text, problem.data)) and len(answers) < self._turns:
            messages = [{"role": "user", "content": reply}]
            answers.append(await client.chat(messages, after=answers[-1]))
        found = NUMBER.fullmatch(answers[-1].text) is not None and reply is None
        return Attempt(
            completions=[answer.completion for answer in answers],
            reward=float(found),
            success=found,
            metrics={"turns": float(len(answers))},
            reason="guessed"
            if found
            else f"not guessed in {len(answers)} turns, the last one {answers[-1].text!r}",
        )

    def _problem(self, number: int) -> Problem:
        opening = {"role": "user", "content": f"Guess: 1 to {self.highest}"}
        return Problem(f"{self.name}/{number}", [opening], number, expected=str(number))


def reply_to(text: str, number: int) -> str | None:
    """Returns "higher" or "lower", or None if the text is `number` or not a number."""
    guess = NUMBER.fullmatch(text)
    if guess is None or int(guess[1]) == number:
        return None
    return "higher" if int(guess[1]) < number else "lower"
