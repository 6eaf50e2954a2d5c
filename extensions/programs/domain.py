"""The domain of programs: problems with tests, for which the model writes Python."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import nlargest
from typing import Any

from extensions.programs.feedback import feedback
from extensions.programs.schemas import CodeProblem
from extensions.programs.sources import Problems, source_of
from extensions.programs.tasks import decoded
from extensions.programs.verifier import ProgramVerifier
from pipelinerl.domains.base import Attempt, ChatClient, Problem, Verified, digest_of, judged_attempt
from pipelinerl.judging.options import HOSTED

VERIFIER = "extensions.programs.verifier.ProgramVerifier"
WALL_PER_CPU = 10  # longest wall time of a submission on a busy machine, in its longest CPU time
FENCES = {"python": ("Python", "```python"), "cpp": ("C++", "```cpp")}


class Code(Verified):
    """Problems for which the model writes a program, which is run on tests.

    train, heldout: names of sources. Training problems with the statement of a held-out one are left out.
    sources: data sets by name, each with the fields of `Source`.
    system_prompt: precedes every problem; null adds none. {language} and {fence} in it become the names of
        the languages, and the beginnings of their blocks.
    turns: answers of an attempt. After one whose program fails a public test, the model is told so.
    programs: options of `ProgramVerifier`: limits, and whether the reward is a share.
    """

    name = "code"

    def __init__(
        self,
        train: Sequence[str],
        heldout: Sequence[str],
        sources: Mapping[str, Mapping[str, Any]],
        system_prompt: str | None,
        programs: Mapping[str, Any],
        turns: int = 1,
        seed: int = 0,
    ):
        ProgramVerifier(**programs)  # raises an error for wrong options, before the start
        longest_s = WALL_PER_CPU * float(programs.get("submission_cpu_s", 30.0))
        super().__init__({"_target_": VERIFIER, HOSTED: longest_s, **programs})
        if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
            raise ValueError(f"turns={turns} must be a whole number, at least 1")
        for key, names in {"train": train, "heldout": heldout}.items():
            if isinstance(names, str):
                raise ValueError(f"{key} is a list of sources: {key}=[{names}]")
        if not train or not heldout:
            raise ValueError("train and heldout must each name a source")
        for name in [*train, *heldout]:
            if name not in sources:
                raise ValueError(f"no source {name!r}; there are {', '.join(sources)}")
        self._sources = {name: source_of(name, sources[name]) for name in dict.fromkeys([*train, *heldout])}
        self._train_names = train
        self._heldout_names = heldout
        self._system_prompt = system_prompt and _prompt(system_prompt, programs.get("language", ["python"]))
        self._turns = turns

    @property
    def fetches(self) -> bool:
        return not all(source.is_local for source in self._sources.values())

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
        return _longest(self._train, count)

    def longest_heldout(self, count: int) -> list[int]:
        return _longest(self._heldout, count)

    def digest(self) -> str:
        return digest_of(f"{each.statement}\0{each.task.encoded().hex()}" for _, each in self._train)

    def plan_notes(self) -> Iterator[str]:
        used = Counter(name for name, _ in [*self._train, *self._heldout])
        for name, problems in self._problems.items():
            held_out = f"; left out: {self._left_out[name]:,} held out" if self._left_out[name] else ""
            less = "".join(f"; left out: {problems.words(reason)}" for reason in problems.left_out)
            yield f"{name}: {used[name]:,} problems{less}{held_out}"

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        """Returns the attempt. Metrics: those of the verifier, turns, judged_<word> of each outcome."""
        answers = [await client.chat(problem.messages)]
        while len(answers) < self._turns and len(answers[-1].completion.token_ids):  # none without time left
            if not (failed := await self._failed(client, problem, answers[-1].text)):
                break
            messages = [{"role": "user", "content": failed}]
            answers.append(await client.chat(messages, after=answers[-1]))
        judgement = await self.judged(client, problem, answers[-1].text)
        attempt = judged_attempt([answer.completion for answer in answers], judgement)
        counts = {f"judged_{word}": float(word == judgement.word) for word in ("right", "wrong", "no_answer")}
        return replace(attempt, metrics=counts | {"turns": float(len(answers))} | attempt.metrics)

    async def _failed(self, client: ChatClient, problem: Problem, text: str) -> str:
        """Returns what the model is told about the first public test that its program fails; "" if none."""
        task = decoded(problem.data)
        for test in task.tests[: task.public]:
            alone = replace(problem, data=task.alone(test).encoded())
            judgement = await self.judged(client, alone, text)
            if not judgement.success:
                return feedback(judgement, test)
        return ""

    # Loaded at first use, so that a run can be planned without its data.

    @cached_property
    def _problems(self) -> dict[str, Problems]:
        return {name: Problems(name, source) for name, source in self._sources.items()}

    @cached_property
    def _heldout(self) -> list[tuple[str, CodeProblem]]:
        return [(name, each) for name in self._heldout_names for each in self._problems[name].found]

    @cached_property
    def _train(self) -> list[tuple[str, CodeProblem]]:
        held_out = {each.statement for _, each in self._heldout}
        every = [(name, each) for name in self._train_names for each in self._problems[name].found]
        train = [(name, each) for name, each in every if each.statement not in held_out]
        if not train:
            raise ValueError("every training problem is held out too; name other sources")
        return train

    @cached_property
    def _left_out(self) -> Counter[str]:
        """The counts of training problems that are held out too, by source."""
        found = Counter({name: len(self._problems[name].found) for name in self._train_names})
        return found - Counter(name for name, _ in self._train)

    def _problem(self, name: str, each: CodeProblem) -> Problem:
        messages = [{"role": "user", "content": each.statement}]
        if self._system_prompt:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        return Problem(f"{name}/{each.problem_id}", messages, each.task.encoded(), domain=name)


def _prompt(text: str, languages: Sequence[str]) -> str:
    names, fences = zip(*(FENCES[language] for language in languages), strict=True)
    return text.replace("{language}", " or ".join(names)).replace("{fence}", " or ".join(fences))


def _longest(problems: Sequence[tuple[str, CodeProblem]], count: int) -> list[int]:
    return nlargest(count, range(len(problems)), key=lambda index: len(problems[index][1].statement))
