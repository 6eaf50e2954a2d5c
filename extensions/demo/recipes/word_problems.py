"""The model that answers word problems in a box, and is sometimes right, which suffices for domain=math.

It does not reason, which a model of this size does not learn in minutes.
"""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from extensions.demo.examples import Batch, Example, batch_of, example
from extensions.demo.local_client import LocalChatClient
from extensions.demo.model import new_model
from extensions.demo.prompts import Prompts
from extensions.demo.recipe import Recipe, Stage, configured, domain_config
from extensions.demo.training import muon_and_adamw
from pipelinerl.domains.base import Domain, Problem

TRAIN = "word_problems"  # source of domain=math
HELDOUT = "word_problems_heldout"


@dataclass(frozen=True)
class Options:
    batch_size: int = 32
    steps: int = 60
    rope_theta: float = 1000.0  # texts of three hundred tokens
    evaluation_problems: int = 128


class WordProblemsRecipe(Recipe):
    options = Options()
    max_tokens = 12  # \boxed{12} and the end are eleven
    context = 1024
    asked_as = "math"

    @property
    def fingerprint(self) -> dict[str, Any]:
        config = domain_config(self.asked_as)
        problems = {"system_prompt": config["system_prompt"]}
        for name in (TRAIN, HELDOUT):
            problems[name] = {k: v for k, v in config["sources"][name].items() if k != "made_by"}
        return {"seed": self.seed, "options": asdict(self.options), "domain": problems}

    def domain(self) -> Domain:
        return configured(self.asked_as, self.seed, train=[TRAIN], heldout=[HELDOUT])

    def initial_model(self, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
        return new_model(tokenizer, self.options.rope_theta)

    def stages(self, client: LocalChatClient, domain: Domain) -> Iterator[Stage]:
        examples = [answered(p, client.prompts) for p in map(domain.train_problem, range(domain.train_size))]
        batches = self._batches(examples, client.prompts.tokenizer.pad_token_id)
        yield Stage(muon_and_adamw(client.model), batches, self.options.steps, warmup=20, named="supervised")

    def _batches(self, examples: list[Example], pad: int) -> Iterator[Batch]:
        chosen = random.Random(self.seed)
        while True:
            yield batch_of(chosen.choices(examples, k=self.options.batch_size), pad)


def answered(problem: Problem, prompts: Prompts) -> Example:
    return example(prompts.of(problem.messages), prompts.ended(rf"\boxed{{{problem.data}}}"))
