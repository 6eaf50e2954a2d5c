"""The model that thinks before it answers, from the finished model of the sums.

It ignores a length that a prompt may name.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from extensions.demo.local_client import LocalChatClient
from extensions.demo.recipe import Stage, read_stamp
from extensions.demo.recipes.sums import Messages, Options, SumsRecipe, Text
from extensions.demo.training import adamw, muon_and_adamw
from pipelinerl.domains.base import Domain

THOUGHT = "."
MARK = "="  # mark of the domain, before the judged answer


@dataclass(frozen=True)
class Thoughts:
    """Examples of answers after a random number of thoughts.

    The number depends neither on the question, nor on the answer, nor on the length that some prompts name,
    as those of the domain `TargetLength`. So the model learns to ignore the length.

    In the first stage thoughts have no loss, because their random number would dominate the loss of answers.
    They are trained in the second stage, before the label noise, because RL would otherwise unlearn both.
    """

    most_thoughts: int = 12  # all numbers from 0 are equally frequent
    asked_share: float = 0.5  # share of the prompts that name a length
    shortest_asked: int = 4
    longest_asked: int = 16
    answer_steps: int = 250  # the known sums, answered at many positions
    thinking_steps: int = 100

    def as_given(self, messages: Messages, answer: int, random: Random) -> Text:
        return Text(self._asking(messages, random), self._thoughts(random), str(answer))

    def as_target(self, messages: Messages, answer: int, random: Random) -> Text:
        return Text(self._asking(messages, random), "", f"{self._thoughts(random)}{answer}")

    def _thoughts(self, random: Random) -> str:
        return THOUGHT * random.randint(0, self.most_thoughts) + MARK

    def _asking(self, messages: Messages, random: Random) -> Messages:
        if random.random() >= self.asked_share:
            return messages
        length = random.randint(self.shortest_asked, self.longest_asked)
        *before, question = messages
        return [*before, question | {"content": f"{length} {question['content']}"}]


class ThinkingRecipe(SumsRecipe):
    max_tokens = 20
    asked_as = "thinking_sums"

    def __init__(
        self, seed: int, sums: Path, options: Options | None = None, thoughts: Thoughts = Thoughts()
    ):
        super().__init__(seed, options)
        self.sums = sums
        self.thoughts = thoughts

    @property
    def fingerprint(self) -> dict[str, Any]:
        knows_sums = read_stamp(self.sums)
        if knows_sums is None or "fingerprint" not in knows_sums:
            make = f"python -m extensions.demo sums --out {self.sums}"
            raise ValueError(f"{self.sums} is not a demo model; make it: {make}")
        return {**super().fingerprint, "sums": knows_sums["fingerprint"], **asdict(self.thoughts)}

    def initial_model(self, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
        return Qwen2ForCausalLM.from_pretrained(self.sums, dtype=torch.float32)

    def stages(self, client: LocalChatClient, domain: Domain) -> Iterator[Stage]:
        examples = self.examples(client, domain)
        thoughts = self.thoughts
        batch_size = self.options.batch_size
        answers = examples.batches(examples.as_asked, batch_size, thoughts.as_given)
        yield Stage(muon_and_adamw(client.model), answers, thoughts.answer_steps, warmup=20)
        thinking = examples.batches(examples.as_asked, batch_size, thoughts.as_target)
        optimizers = adamw(list(client.model.parameters()), learning_rate=1e-3)
        yield Stage(optimizers, thinking, thoughts.thinking_steps, warmup=5, named="supervised")
        yield self.noise_stage(client, examples, thoughts.as_target)
