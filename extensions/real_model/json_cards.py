"""Domain: a sentence about a person, to be written as JSON with given keys."""

import json
import random
from collections.abc import Sequence
from itertools import product

from pipelinerl.domains.base import Problem, Verified

VERIFIER = "extensions.real_model.verifiers.JsonObject"
AGES = range(18, 81)
WORDINGS = (
    "{name} is {age} years old and lives in {city}.",
    "{name} lives in {city} and is {age} years old.",
    "In {city} lives {name}, who is {age}.",
)
NAMES_HELD_OUT = 0.2  # share of the names


class JsonCards(Verified):
    """Sentences with a name, an age and a city. An answer is right if it is the JSON object and nothing else.

    names: a fifth of them is in held-out sentences only, whatever the seed.
    train_size, heldout_size: numbers of sentences.
    seed: ignored.
    """

    name = "json_cards"

    def __init__(
        self, names: Sequence[str], cities: Sequence[str], train_size: int, heldout_size: int, seed: int = 0
    ):
        super().__init__({"_target_": VERIFIER})
        _check_words("names", names)
        _check_words("cities", cities)
        self.train_size = train_size
        self.heldout_size = heldout_size
        shuffled = random.Random(self.name)
        ordered = sorted(set(names))
        shuffled.shuffle(ordered)
        held_out = round(NAMES_HELD_OUT * len(ordered))
        self._heldout = _drawn(shuffled, ordered[:held_out], cities, "heldout_size", heldout_size)
        self._train = _drawn(shuffled, ordered[held_out:], cities, "train_size", train_size)

    def train_problem(self, index: int) -> Problem:
        return self._problem(*self._train[index])

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(*self._heldout[index])

    def _problem(self, name: str, age: int, city: str, wording: str) -> Problem:
        sentence = wording.format(name=name, age=age, city=city)
        content = (
            f'Write this as JSON with the keys "name", "age" and "city": {sentence} Reply with the JSON only.'
        )
        card = {"name": name, "age": age, "city": city}
        messages = [{"role": "user", "content": content}]
        return Problem(f"{self.name}/{sentence}", messages, card, expected=json.dumps(card))


def _check_words(option: str, words: object) -> None:
    """Raises ValueError if the option is no list of words."""
    is_list = isinstance(words, Sequence) and not isinstance(words, str)
    if not is_list or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"{option} is no list of words, such as [Anna, Rome]")


def _drawn(
    shuffled: random.Random, names: Sequence[str], cities: Sequence[str], option: str, count: int
) -> list[tuple[str, int, str, str]]:
    """Returns distinct sentences. Raises ValueError if there are not so many."""
    if type(count) is not int:
        raise ValueError(f"{option}={count} is no whole number")
    every = list(product(names, AGES, sorted(set(cities)), WORDINGS))
    if not 1 <= count <= len(every):
        raise ValueError(
            f"{option}={count}: set 1 to {len(every)}, the number of sentences of these names and cities"
        )
    return shuffled.sample(every, count)
