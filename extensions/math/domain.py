"""The domain of mathematical problems: selects problems from data sets and rewards outcomes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import nlargest
from typing import Any

from extensions.math.rows import Row, Rows
from extensions.math.sources import sources_of
from pipelinerl.domains.base import Attempt, ChatClient, Problem, Verified, digest_of, judged_attempt
from pipelinerl.domains.mixture import in_turn

VERIFIER = "extensions.math.verifier.MathVerifier"
OUTCOMES = ("right", "wrong", "no_answer", "undecided")
EMPTY = "without a problem or an answer"
HELD_OUT = "held out"
CONTRADICTORY = "with another answer to the same problem"
JUDGE_MOVED = (
    "domain.judge has moved to judging, for all domains: judging.workers, judging.verdict_s (timeout_s), "
    "judging.memory_bytes, judging.max_characters; for a stopped run, in its config.yaml"
)


class Math(Verified):
    """Problems with one answer, which the model puts in a box.

    train, heldout: names of sources. Training problems with the text of a held-out problem are removed.
    sources: data sets by name, each with the fields of `Source`.
    system_prompt: precedes every problem without one; null adds none.
    rewards: reward of each outcome.
    """

    name = "math"

    def __init__(
        self,
        train: Sequence[str],
        heldout: Sequence[str],
        sources: Mapping[str, Mapping[str, str]],
        system_prompt: str | None,
        rewards: Mapping[str, float],
        seed: int = 0,
        judge: Mapping[str, Any] | None = None,
    ):
        if judge is not None:
            raise ValueError(JUDGE_MOVED)
        super().__init__({"_target_": VERIFIER})
        known = sources_of(sources)
        for name in [*train, *heldout]:
            if name not in known:
                raise ValueError(f"no source {name!r}; there are {', '.join(known)}")
        if not train or not heldout:
            raise ValueError("train and heldout must each name a source")
        if rewards.keys() != set(OUTCOMES) or not all(isinstance(r, int | float) for r in rewards.values()):
            raise ValueError(f"rewards must give each of {', '.join(OUTCOMES)} a number, and nothing else")
        self._sources = known
        self._train_names = train
        self._heldout_names = heldout
        self._names = dict.fromkeys([*train, *heldout])
        self._system_prompt = system_prompt
        self._rewards = rewards
        self._left_out: dict[str, Counter[str]] = {}

    @property
    def fetches(self) -> bool:
        return not all(self._sources[name].is_here for name in self._names)

    @property
    def makes(self) -> bool:
        return all(self._sources[name].is_local for name in self._names)

    @property
    def train_size(self) -> int:
        return len(self._train)

    @property
    def heldout_size(self) -> int:
        return len(self._heldout)

    def train_problem(self, index: int) -> Problem:
        return self._problem(*self._train[index])

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(*self._heldout[index])

    def longest_problems(self, count: int) -> list[int]:
        return self._longest(self._train, count)

    def longest_heldout(self, count: int) -> list[int]:
        return self._longest(self._heldout, count)

    def digest(self) -> str:
        rows = (self._rows[name][index] for name, index in self._train)
        return digest_of(f"{row.problem}\0{row.answer}" for row in rows)

    def plan_notes(self) -> Iterator[str]:
        used = Counter(name for name, _ in [*self._train, *self._heldout])
        for name, reasons in self._left_out.items():
            less = "".join(f"; left out: {count:,} {reason}" for reason, count in reasons.items())
            yield f"{name}: {used[name]:,} problems{less}"

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        """Returns the attempt. Metrics: judged_<outcome> is 1 for its outcome and 0 for the others."""
        answer = await client.chat(problem.messages)
        judgement = await self.judged(client, problem, answer.text)
        attempt = judged_attempt([answer.completion], judgement)
        word = judgement.word if judgement.word in OUTCOMES else "undecided"  # an answer may forge a word
        counts = {f"judged_{outcome}": float(outcome == word) for outcome in OUTCOMES}
        return replace(attempt, reward=self._rewards[word], metrics=attempt.metrics | counts)

    # Loaded at first use, so that a run can be planned without its data.

    @cached_property
    def _rows(self) -> dict[str, Rows]:
        return {name: Rows(name, self._sources[name]) for name in self._names}

    @cached_property
    def _heldout(self) -> list[tuple[str, int]]:
        sound = self._sound(self._heldout_names, {})
        turns = in_turn({name: len(indices) for name, indices in sound.items()})
        return [(name, sound[name][turn]) for name, turn in turns]

    @cached_property
    def _train(self) -> list[tuple[str, int]]:
        held_out = {row.problem for name in self._heldout_names for row in self._rows[name]}
        sound = self._sound(self._train_names, dict.fromkeys(held_out, HELD_OUT))
        return [(name, index) for name, indices in sound.items() for index in indices]

    def _sound(self, names: Sequence[str], unfit: Mapping[str, str]) -> dict[str, list[int]]:
        """Returns the usable rows of each source. unfit: problem -> reason to leave it out."""
        unfit = {**contradictory([row for name in names for row in self._rows[name]]), **unfit}
        sound = {}
        for name in names:
            rows = self._rows[name]
            reasons = [unfit.get(row.problem) if row.problem and row.answer else EMPTY for row in rows]
            sound[name] = [index for index, reason in enumerate(reasons) if reason is None]
            self._left_out[name] = Counter(filter(None, reasons))
            if not sound[name]:
                counts = ", ".join(f"{count:,} {reason}" for reason, count in self._left_out[name].items())
                raise ValueError(f"{name} has no row that can be used: {counts}")
        return sound

    def _longest(self, problems: Sequence[tuple[str, int]], count: int) -> list[int]:
        characters = [len(self._rows[name][index].problem) for name, index in problems]
        return nlargest(count, range(len(problems)), key=characters.__getitem__)

    def _problem(self, name: str, index: int) -> Problem:
        row = self._rows[name][index]
        messages = list(row.messages) or [{"role": "user", "content": row.problem}]
        if self._system_prompt and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        return Problem(f"{name}/{index}", messages, row.answer, domain=name, expected=row.answer)


def contradictory(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the problems that have different answers, each with the reason CONTRADICTORY."""
    first: dict[str, str] = {}
    answered = [row for row in rows if row.answer]
    other = [row for row in answered if first.setdefault(row.problem, row.answer) != row.answer]
    return {row.problem: CONTRADICTORY for row in other}
