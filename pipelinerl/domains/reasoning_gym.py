"""Domain: any task of the reasoning-gym library, by name; problems and scorer are the library's own.

A rollout is one chat turn. Training and held-out problems never share a question: the text of a
question alone decides on which side it falls, whatever the seed, so a model trained under one seed can
be judged under another. (Seeds alone would not do: two seeds of a small task ask the same questions.)
Both sides follow the task's own distribution; where a task has few questions, they repeat within a side.
"""

import difflib
import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from pipelinerl.domains.base import Answer, Attempt, ChatClient, Domain, Problem

HELDOUT_ONE_IN = 5  # of a task's distinct questions
MAX_REDRAWS = 200  # a side with one question in five is missed so often once in 10^19
SOLVED = 0.99  # some of the library's scorers compute 1.0 in floating point


class ReasoningGym(Domain):
    """`task`: a name of the library; `task_options`: the fields of its config, the library's defaults otherwise.

    `prompt_pattern`: regular expression; what its first group matches in the question is the prompt.
        None: the whole question.
    `system_prompt`: name of one of the library's system prompts, which tell a chat model how to mark its
        answer. None: no system message.
    `presets`: by task, values of the three arguments above for when they are not given.
    """

    def __init__(
        self,
        task: str,
        task_options: Mapping[str, Any] | None = None,
        prompt_pattern: str | None = None,
        system_prompt: str | None = None,
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
        self._prompt_pattern = prompt_pattern or preset.get("prompt_pattern")
        self._system_prompt = system_prompt or preset.get("system_prompt")
        self._seed = seed
        self._draws: list[reasoning_gym.dataset.ProceduralDataset] = []  # first draws, second draws, ...
        self._check_options()
        self._dataset(0)

    def _check_options(self) -> None:
        known = set(DATASETS[self.name][1].__dataclass_fields__) - {"seed", "size"}
        for option in self._options:
            _check_name(f"option of task {self.name!r}", option, known)
        if self._system_prompt:
            _check_name("system prompt of reasoning-gym", self._system_prompt, SYSTEM_PROMPTS)
