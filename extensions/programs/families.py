"""A set of 464 problems that needs no network: 24 families, each with a number k in its statement."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from random import Random
from typing import Any

TESTS = 10
PROBLEMS = 464
HELD_OUT = 64
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
NUMBERS = "The input is one line of integers."
TEXT = "The input is one line of lower-case words."
LISTED = " Print one line, with a space between any two of them."
NUMBER = "The input is one positive integer n."


@dataclass(frozen=True)
class Family:
    """reads: the kind of the input. asks: what to print. solve: the answer to an input and k."""

    name: str
    reads: str
    asks: str
    solve: Callable[[Any, int], Any]
    first_k: int = 2


def _longest_run(numbers: list[int], k: int) -> int:
    runs = [len(list(group)) for is_below, group in groupby(numbers, lambda x: x < k) if is_below]
    return max(runs, default=0)


def _in_base(n: int, k: int) -> str:
    digits = []
    while n:
        n, digit = divmod(n, k)
        digits.append(str(digit))
    return " ".join(reversed(digits))


def _shifted(text: str, k: int) -> str:
    return "".join(LETTERS[(LETTERS.index(c) + k) % 26] if c in LETTERS else c for c in text)


def _halvings(n: int, k: int) -> int:
    steps = 0
    while n > k:
        n = n // 2 if n % 2 == 0 else n - 1
        steps += 1
    return steps


FAMILIES = (
    Family(
        "divisible",
        NUMBERS,
        "the sum of those divisible by {k}",
        lambda xs, k: sum(x for x in xs if x % k == 0),
    ),
    Family("greater", NUMBERS, "how many are greater than {k}", lambda xs, k: sum(x > k for x in xs)),
    Family(
        "rotate",
        NUMBERS,
        "them, rotated to the left by {k} places",
        lambda xs, k: xs[k % len(xs) :] + xs[: k % len(xs)],
    ),
    Family(
        "smallest",
        NUMBERS,
        "the smallest one that is at least {k}, or -1",
        lambda xs, k: min((x for x in xs if x >= k), default=-1),
    ),
    Family("run", NUMBERS, "the length of the longest run of numbers below {k}", _longest_run),
    Family(
        "window",
        NUMBERS,
        "the largest sum of {k} consecutive ones, or of all if there are fewer",
        lambda xs, k: max(sum(xs[i : i + k]) for i in range(max(1, len(xs) - k + 1))),
    ),
    Family(
        "pairs",
        NUMBERS,
        "the number of pairs of places i < j whose numbers have the sum {k}",
        lambda xs, k: sum(xs[i] + xs[j] == k for i in range(len(xs)) for j in range(i)),
        20,
    ),
    Family(
        "residues",
        NUMBERS,
        "the number of different remainders modulo {k}",
        lambda xs, k: len({x % k for x in xs}),
    ),
    Family("modulo", NUMBERS, "the remainder of each modulo {k}", lambda xs, k: [x % k for x in xs]),
    Family(
        "prefixes",
        NUMBERS,
        "the sums of all their beginnings, each modulo {k}",
        lambda xs, k: [x % k for x in accumulate(xs)],
    ),
    Family(
        "order",
        NUMBERS,
        "them, ordered by the remainder modulo {k}, then by value",
        lambda xs, k: sorted(xs, key=lambda x: (x % k, x)),
    ),
    Family(
        "nearest",
        NUMBERS,
        "the one nearest to {k}, of equally near ones the smaller",
        lambda xs, k: min(xs, key=lambda x: (abs(x - k), x)),
    ),
    Family(
        "clipped",
        NUMBERS,
        "the sum, where each number above {k} counts as {k}",
        lambda xs, k: sum(min(x, k) for x in xs),
    ),
    Family("caesar", TEXT, "it with each letter moved by {k} in the alphabet, from z on to a", _shifted),
    Family("every", TEXT, "every {k}th character, beginning with the first", lambda s, k: s[::k]),
    Family(
        "long",
        TEXT,
        "how many words have more than {k} letters",
        lambda s, k: sum(len(w) > k for w in s.split()),
        1,
    ),
    Family(
        "beginnings",
        TEXT,
        "the first {k} letters of each word, or the word if it is shorter",
        lambda s, k: [w[:k] for w in s.split()],
        1,
    ),
    Family(
        "groups",
        TEXT,
        "its letters without spaces, in groups of {k} with - between them",
        lambda s, k: "-".join(s.replace(" ", "")[i : i + k] for i in range(0, len(s.replace(" ", "")), k)),
    ),
    Family(
        "vowels",
        TEXT,
        "it with each vowel repeated {k} times",
        lambda s, k: "".join(c * k if c in VOWELS else c for c in s),
    ),
    Family(
        "frequent",
        TEXT,
        "in alphabetical order, as one word, the letters that occur at least {k} times, or the word none",
        lambda s, k: "".join(c for c in LETTERS if s.count(c) >= k) or "none",
    ),
    Family("base", NUMBER, "its digits in base {k}, from the highest, with spaces between them", _in_base),
    Family(
        "digits",
        NUMBER,
        "the sum of the decimal digits of n times {k}",
        lambda n, k: sum(map(int, str(n * k))),
    ),
    Family(
        "coprime",
        NUMBER,
        "how many of 1 to n have no common divisor with {k} but 1",
        lambda n, k: sum(math.gcd(x, k) == 1 for x in range(1, n + 1)),
    ),
    Family(
        "halvings",
        NUMBER,
        "the steps until n is at most {k}, if a step halves an even n and takes 1 from an odd one",
        _halvings,
    ),
)


def rows(split: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of `train` or `heldout` in the schema `own`."""
    every = [_row(FAMILIES[i % len(FAMILIES)], i // len(FAMILIES)) for i in range(PROBLEMS)]
    every.sort(key=lambda row: hashlib.sha256(row["problem_id"].encode()).digest())
    yield from every[:HELD_OUT] if split == "heldout" else every[HELD_OUT:]


def _row(family: Family, number: int) -> dict[str, Any]:
    k = family.first_k + number
    random = Random(f"{family.name}/{k}")
    is_list = isinstance(_solved(family, _input(family, random), k), list)
    inputs = list({_input(family, random): None for _ in range(4 * TESTS)})[:TESTS]
    tests = [{"input": f"{given}\n", "expected": _answer(family, given, k)} for given in inputs]
    shown = f"For example, for\n\n{inputs[0]}\n\nprint\n\n{tests[0]['expected']}"
    statement = f"{family.reads} Print {family.asks.format(k=k)}.{LISTED if is_list else ''}\n\n{shown}"
    return {"problem_id": f"{family.name}/{k}", "statement": statement, "tests": tests}


def _input(family: Family, random: Random) -> str:
    if family.reads == NUMBER:
        return str(random.randint(1, 5000))
    if family.reads == NUMBERS:
        return " ".join(str(random.randint(1, 40)) for _ in range(random.randint(1, 20)))
    weights = [random.random() ** 3 for _ in range(12)]  # so that some letters are frequent
    lengths = [random.randint(1, 20) for _ in range(random.randint(1, 8))]
    return " ".join("".join(random.choices(LETTERS[:12], weights, k=length)) for length in lengths)


def _solved(family: Family, given: str, k: int) -> Any:
    read = {NUMBERS: lambda: [int(x) for x in given.split()], NUMBER: lambda: int(given), TEXT: lambda: given}
    return family.solve(read[family.reads](), k)


def _answer(family: Family, given: str, k: int) -> str:
    answer = _solved(family, given, k)
    return " ".join(map(str, answer)) if isinstance(answer, list) else str(answer)
