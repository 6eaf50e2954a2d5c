"""The domain: which data sets, how they are asked, and what a verdict is worth."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem
from pipelinerl.domains.math.judge import Judge, Verdict
from pipelinerl.domains.math.sources import Rows, sources_of
from pipelinerl.domains.mixture import in_turn


class Math(Domain):
    """Problems with one answer, which the model puts in a box.

    train, heldout: names of sources. What is held out is no training problem, word for word.
    sources: data sets by name; the fields of each are `Source`'s.
    system_prompt: shown before every problem; null shows none.
    rewards: of each verdict.
    judge: options of `Judge`.
    """

    name = "math"

    def __init__(
        self,
        train: Sequence[str],
        heldout: Sequence[str],
        sources: Mapping[str, Mapping[str, str]],
        system_prompt: str | None,
        rewards: Mapping[str, float],
        judge: Mapping[str, Any],
        seed: int = 0,
    ):
        known = sources_of(sources)
        for name in [*train, *heldout]:
            if name not in known:
                raise ValueError(f"no source {name!r}; there are {', '.join(known)}")
        if not train or not heldout:
            raise ValueError("train and heldout must each name a source")
        if rewards.keys() != set(Verdict) or not all(isinstance(r, int | float) for r in rewards.values()):
            raise ValueError(f"rewards must give each of {', '.join(Verdict)} a number, and nothing else")
        self._sources = known
        self._train_names = train
        self._heldout_names = heldout
        self._names = dict.fromkeys([*train, *heldout])
        self._system_prompt = system_prompt
        self._rewards = rewards
        self._judge = Judge(**judge)

    @property
    def fetches(self) -> bool:
        return not all(self._sources[name].is_here for name in self._names)

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

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        verdict = await self._judge(answer.text, problem.data)
        return Attempt(
            completions=[answer.completion],
            reward=self._rewards[verdict],
            success=verdict == Verdict.RIGHT,
            metrics={f"verdict_{name}": float(name == verdict) for name in Verdict},
        )

    def close(self) -> None:
        """Ends the judge's processes; another verdict starts them again."""
        self._judge.close()

    # Loaded when they are wanted: a plan shows a run whose data is not here.

    @cached_property
    def _rows(self) -> dict[str, Rows]:
        return {name: Rows(name, self._sources[name]) for name in self._names}

    @cached_property
    def _heldout(self) -> list[tuple[str, int]]:
        sound = {name: self._sound(name) for name in self._heldout_names}
        turns = in_turn({name: len(indices) for name, indices in sound.items()})
        return [(name, sound[name][turn]) for name, turn in turns]

    @cached_property
    def _train(self) -> list[tuple[str, int]]:
        held_out = {row.problem for name in self._heldout_names for row in self._rows[name]}
        return [(name, index) for name in self._train_names for index in self._sound(name, held_out)]

    def _sound(self, name: str, elsewhere: Collection[str] = ()) -> list[int]:
        """The rows that have both a problem and an answer, and whose problem is not `elsewhere`."""
        rows = enumerate(self._rows[name])
        sound = [index for index, row in rows if all(row) and row.problem not in elsewhere]
        if not sound:
            raise ValueError(f"{name} has no row with a problem and an answer that is not held out")
        return sound

    def _problem(self, name: str, index: int) -> Problem:
        row = self._rows[name][index]
        messages = [{"role": "user", "content": row.problem}]
        if self._system_prompt:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        return Problem(f"{name}/{index}", messages, row.answer, domain=name)
