"""The model that answers word problems in a box, and is right now and then: enough for a run of domain=math.

It answers at once. To reason first is not something that a model of this size learns in minutes.
"""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from pipelinerl.demo_model.examples import Batch, Lesson, batch_of, lesson
from pipelinerl.demo_model.local_client import Pupil
from pipelinerl.demo_model.model import new_model
from pipelinerl.demo_model.prompts import Prompts
from pipelinerl.demo_model.recipe import Course, Stage, configured, domain_config
from pipelinerl.demo_model.training import muon_and_adamw
from pipelinerl.domains.base import Problem
from pipelinerl.domains.math.domain import Math

TRAIN, HELDOUT = "word_problems", "word_problems_heldout"  # sources of conf/domain/math.yaml


@dataclass(frozen=True)
class Recipe:
    batch_size: int = 32
    steps: int = 60
    rope_theta: float = 1000.0  # texts of three hundred tokens
    evaluation_problems: int = 128


class WordProblems(Course):
    max_tokens = 12  # \boxed{12} and the end are eleven
    context = 1024

    def __init__(self, seed: int, recipe: Recipe = Recipe()):
        self.seed, self.recipe = seed, recipe
        self.evaluation_problems = recipe.evaluation_problems

    @property
    def made_of(self) -> dict[str, Any]:
        config = domain_config("math")
        asked = {"system_prompt": config["system_prompt"]}
        asked |= {name: config["sources"][name] for name in (TRAIN, HELDOUT)}
        return {"seed": self.seed, "recipe": asdict(self.recipe), "domain": asked}

    def domain(self) -> Math:
        return configured("math", self.seed, train=[TRAIN], heldout=[HELDOUT])

    def begin(self, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
        return new_model(tokenizer, self.recipe.rope_theta)

    def stages(self, pupil: Pupil, domain: Math) -> Iterator[Stage]:
        lessons = [answered(p, pupil.prompts) for p in map(domain.train_problem, range(domain.train_size))]
        batches = self._batches(lessons, pupil.prompts.tokenizer.pad_token_id)
        try:
            yield Stage(muon_and_adamw(pupil.model), batches, self.recipe.steps, warmup=20, named="taught")
        finally:
            domain.close()

    def _batches(self, lessons: list[Lesson], pad: int) -> Iterator[Batch]:
        chosen = random.Random(self.seed)
        while True:
            yield batch_of(chosen.choices(lessons, k=self.recipe.batch_size), pad)


def answered(problem: Problem, prompts: Prompts) -> Lesson:
    return lesson(prompts.of(problem.messages), prompts.ended(rf"\boxed{{{problem.data}}}"))
