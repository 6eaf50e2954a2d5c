"""Domain: any task of the reasoning-gym library, with the library's problems and scorer.

The scorer runs in the judging service, because several scorers evaluate the answer as Python.

A rollout is one chat turn. A hash of its text decides whether a question is held out. So training and
held-out problems never share a question, under any seeds. Different seeds alone would not separate them,
because small tasks ask the same questions under each seed. Training follows the task's distribution. Each
held-out question is asked once, unless the task has too few.
"""

import difflib
import functools
import hashlib
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS, create_dataset
from reasoning_gym.utils import SYSTEM_PROMPTS

from pipelinerl.domains.base import Problem, Verified

HELDOUT_ONE_IN = 10  # share of a task's distinct questions
MAX_DRAWS = 400  # if one question in ten fits, all draws miss with a probability of 10^-18
BLOCK = 1000  # questions per dataset of the library, because some tasks make all of them in advance
FORMULAS = (  # tasks whose answers are parsed by sympy, which executes them as Python
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
)
VERIFIER = "extensions.reasoning_gym.verifier.ReasoningGymVerifier"
OF_PRESET = "preset"


class ReasoningGym(Verified):
    """One task of the library.

    task: name of the task in the library.
    task_options: fields of the task's config that differ from the library's defaults.
    prompt_pattern: regular expression whose first group extracts the prompt from the question; null shows
        the full question.
    system_prompt: name of one of the library's system prompts, which tell a chat model how to mark its
        answer; null sends none.
    difficulty_keys: entries of the library's metadata whose sum is a problem's difficulty, such as
        num_terms and num_digits of chain_sum; null gives no difficulties.
    presets: task -> values for arguments above that are "preset", and further task_options.
    """

    def __init__(
        self,
        task: str,
        task_options: Mapping[str, Any] | None = None,
        prompt_pattern: str | None = OF_PRESET,
        system_prompt: str | None = OF_PRESET,
        difficulty_keys: Sequence[str] | str | None = OF_PRESET,
        presets: Mapping[str, Mapping[str, Any]] | None = None,
        train_size: int = 100_000,
        heldout_size: int = 1_000,
        seed: int = 0,
    ) -> None:
        _check_name("reasoning-gym task", task, DATASETS)
        preset = (presets or {}).get(task, {})
        self.name = task
        self.train_size = train_size
        self.heldout_size = heldout_size
        self._options = {**preset.get("task_options", {}), **(task_options or {})}
        given = {
            "prompt_pattern": prompt_pattern,
            "system_prompt": system_prompt,
            "difficulty_keys": difficulty_keys,
        }
        chosen = {key: preset.get(key) if value == OF_PRESET else value for key, value in given.items()}
        self._prompt_pattern = chosen["prompt_pattern"]
        self._system_prompt = chosen["system_prompt"]
        self._difficulty_keys = chosen["difficulty_keys"]
        self._seed = seed
        self._dataset = functools.lru_cache(maxsize=64)(self._new_dataset)
        self._heldout: list[Problem] = []
        self._heldout_questions: set[str] = set()
        self._heldout_position = train_size  # where the search for the next held-out question continues
        self._heldout_exhausted = False

        for option in self._options:
            _check_name(f"option of reasoning-gym task {task}", option, _option_names(task))
        if self._system_prompt:
            _check_name("system prompt of reasoning-gym", self._system_prompt, SYSTEM_PROMPTS)
        sample = self._dataset(block=0, draw=0)
        reused = task not in FORMULAS
        super().__init__({"_target_": VERIFIER, "_reused_": reused, "task": task, "options": self._options})
        if self._difficulty_keys:
            labels = _numbers(sample[0]["metadata"])
            for key in self._difficulty_keys:
                _check_name(f"difficulty key of reasoning-gym task {task}", key, labels)

    def difficulty(self, index: int) -> float:
        if not self._difficulty_keys:
            return super().difficulty(index)
        metadata = self._train_entry(index)["metadata"]
        return float(sum(metadata[key] for key in self._difficulty_keys))

    def train_problem(self, index: int) -> Problem:
        return self._problem(f"train/{index}", self._train_entry(index))

    def heldout_problem(self, index: int) -> Problem:
        while len(self._heldout) <= index and not self._heldout_exhausted:
            self._find_heldout()
        if not self._heldout:
            raise self._too_few("held-out")
        return self._heldout[index % len(self._heldout)]

    def _find_heldout(self) -> None:
        for _ in range(MAX_DRAWS):
            entry = self._entry(self._heldout_position)
            self._heldout_position += 1
            question = entry["question"]
            if is_heldout(question) and question not in self._heldout_questions:
                self._heldout.append(self._problem(f"heldout/{len(self._heldout)}", entry))
                self._heldout_questions.add(question)
                return
        self._heldout_exhausted = True

    def _problem(self, place: str, entry: dict[str, Any]) -> Problem:
        messages = self._messages(entry["question"])
        return Problem(f"{self.name}/{place}", messages, entry, expected=entry["answer"])

    def _train_entry(self, index: int) -> dict[str, Any]:
        """Returns the entry at `index`, drawn again while its question is held out."""
        for draw in range(MAX_DRAWS):
            entry = self._entry(index, draw)
            if not is_heldout(entry["question"]):
                return entry
        raise self._too_few("training")

    def _entry(self, position: int, draw: int = 0) -> dict[str, Any]:
        block, offset = divmod(position, BLOCK)
        return self._dataset(block, draw)[offset]

    def _too_few(self, side: str) -> ValueError:
        return ValueError(
            f"reasoning-gym task {self.name}: no {side} question in {MAX_DRAWS} draws; "
            f"with options {self._options} it has too few questions to hold some out"
        )

    def _new_dataset(self, block: int, draw: int) -> ProceduralDataset:
        # Not seed + 1, because the library adds the index to its seed: adjacent seeds share questions.
        seed = random.Random(f"{self._seed}/{block}/{draw}").randrange(2**31)
        try:
            return create_dataset(self.name, **self._options, seed=seed, size=BLOCK)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(
                f"reasoning-gym task {self.name} refuses options {self._options}: {error}"
            ) from error

    def _messages(self, question: str) -> list[dict[str, str]]:
        messages = [{"role": "user", "content": self._prompt(question)}]
        if self._system_prompt:
            messages.insert(0, {"role": "system", "content": SYSTEM_PROMPTS[self._system_prompt]})
        return messages

    def _prompt(self, question: str) -> str:
        if not self._prompt_pattern:
            return question
        match = re.search(self._prompt_pattern, question)
        if match is None:
            raise ValueError(f"prompt_pattern {self._prompt_pattern!r} matches nothing in {question!r}")
        return match.group(1)


def is_heldout(question: str) -> bool:
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:8]) % HELDOUT_ONE_IN == 0


def _option_names(task: str) -> list[str]:
    """Returns the options that a user may set. The domain sets seed and size."""
    return [field.name for field in fields(DATASETS[task][1]) if field.name not in ("seed", "size")]


def _numbers(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the keys of numeric entries, except `source_` entries, which give a question's position."""
    return [
        key
        for key, value in metadata.items()
        if isinstance(value, int | float) and not key.startswith("source_")
    ]


def _check_name(what: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(sorted(known))}"
    raise ValueError(f"unknown {what}: {name!r}; {hint}")
