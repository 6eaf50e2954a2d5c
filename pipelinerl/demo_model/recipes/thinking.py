"""The model that thinks before it answers, from the finished one of the sums.

It reads past a length that a prompt may name. To keep to one is something that it was never taught.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from pipelinerl.demo_model.local_client import Pupil
from pipelinerl.demo_model.recipe import Stage, read_stamp
from pipelinerl.demo_model.recipes.sums import RECIPE, Messages, Recipe, Sums, Text
from pipelinerl.demo_model.training import adamw, muon_and_adamw
from pipelinerl.domains.thinking_sums import MARK, THOUGHT, ThinkingSums


@dataclass(frozen=True)
class Thoughts:
    """The answer after any number of thoughts, which tells nothing: neither of the question, nor of whether
    the answer is right, nor of the length that a part of the prompts name. Those are as the domain
    `TargetLength` makes them, so that a model can read past that length; it never sees one that is kept.

    Thoughts are given first, and learnt in a lesson of their own: a number that follows from nothing would
    drown what is there to be learnt. It comes before the slips, or what undoes these would undo it too.
    """

    most_thoughts: int = 12  # all numbers from 0 are as frequent
    asked_share: float = 0.5  # of the prompts: they name a length
    shortest_asked: int = 4
    longest_asked: int = 16
    answer_steps: int = 250  # the known sums, answered at many places
    thinking_steps: int = 100

    def given(self, messages: Messages, answer: int, random: Random) -> Text:
        """While the task is taught."""
        return Text(self._asking(messages, random), self._thoughts(random), str(answer))

    def learnt(self, messages: Messages, answer: int, random: Random) -> Text:
        """Once the task is known."""
        return Text(self._asking(messages, random), "", f"{self._thoughts(random)}{answer}")

    def _thoughts(self, random: Random) -> str:
        return THOUGHT * random.randint(0, self.most_thoughts) + MARK

    def _asking(self, messages: Messages, random: Random) -> Messages:
        if random.random() >= self.asked_share:
            return messages
        length = random.randint(self.shortest_asked, self.longest_asked)
        *before, question = messages
        return [*before, question | {"content": f"{length} {question['content']}"}]


class Thinking(Sums):
    max_tokens = 20
    asked_as = "thinking_sums"

    def __init__(self, seed: int, sums: Path, recipe: Recipe = RECIPE, thoughts: Thoughts = Thoughts()):
        super().__init__(seed, recipe)
        self.sums, self.thoughts = sums, thoughts

    @property
    def made_of(self) -> dict[str, Any]:
        knows_sums = read_stamp(self.sums)
        if knows_sums is None:
            make = f"python -m pipelinerl.demo_model sums --out {self.sums}"
            raise ValueError(f"{self.sums} is not a demo model; make it: {make}")
        return {**super().made_of, "sums": knows_sums["made_of"], **asdict(self.thoughts)}

    def begin(self, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
        return Qwen2ForCausalLM.from_pretrained(self.sums)

    def stages(self, pupil: Pupil, domain: ThinkingSums) -> Iterator[Stage]:
        lessons, thoughts, batch_size = self.lessons(pupil, domain), self.thoughts, self.recipe.batch_size
        answers = lessons.batches(lessons.as_asked, batch_size, thoughts.given)
        yield Stage(muon_and_adamw(pupil.model), answers, thoughts.answer_steps, warmup=20)
        thinking = lessons.batches(lessons.as_asked, batch_size, thoughts.learnt)
        optimizers = adamw(list(pupil.model.parameters()), learning_rate=1e-3)
        yield Stage(optimizers, thinking, thoughts.thinking_steps, warmup=5, named="taught")
        yield self.slips(pupil, lessons, thoughts.learnt)
