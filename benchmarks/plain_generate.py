"""Held-out success of a run's final checkpoint, by Hugging Face `generate` alone.

    python -m benchmarks.plain_generate runs/latest [--problems 1000]

Nothing of the pipeline takes part but the domain and its judge: the checkpoint is loaded with
AutoModelForCausalLM, each problem is sampled once at temperature 1, and the rate is printed beside what the
run itself measured.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.arguments import positive_int, refuse
from contracts.records import Completion
from contracts.support.command_line import command_parser
from contracts.tool_calls import parse_tool_calls
from pipelinerl.components import build_domain
from pipelinerl.config import RunConfig, load_config
from pipelinerl.conversations.base import Conversation
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Answer, opened
from pipelinerl.domains.judges import judge_of
from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.wire import Judgement


class GenerateClient:
    """A domain's chat client whose responses come from `model.generate`.

    `judge`: a client of the judging service, or None for a domain without verifiers.
    """

    def __init__(self, checkpoint: Path, max_tokens: int, judge: JudgingClient | None):
        self._judge = judge
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint)
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self._template = TemplateConversations(str(checkpoint))
        self._max_tokens = max_tokens

    @torch.no_grad()
    async def chat(
        self,
        messages: list[dict[str, str]],
        after: Answer | None = None,
        tools: list[dict] | None = None,
    ) -> Answer:
        if after:
            asked = Conversation([], tools)
            parsed = self._template.parse(asked, after.completion)
            prompt = self._template.extend(asked, after.completion, parsed, messages)
        else:
            prompt = self._tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, return_dict=False
            )
        ids = torch.tensor([prompt])
        sampled = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=self._max_tokens,
        )[0, len(prompt) :]
        completion = Completion(
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            token_ids=sampled.numpy().astype(np.int32),
            logprobs=np.zeros(len(sampled), dtype=np.float32),
            spans=[],
            temperature=1.0,
            finish_reason="stop" if len(sampled) < self._max_tokens else "length",
        )
        text = self._tokenizer.decode(sampled, skip_special_tokens=True)
        text, calls = parse_tool_calls(text) if tools else (text, [])
        return Answer(text, completion, calls)

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        return await self._judge.judged(verifier, task, text)


async def success(config: RunConfig, checkpoint: Path, problems: int) -> float:
    domain = build_domain(config)
    async with judge_of(domain, config.judging) as judge, opened(domain):
        client = GenerateClient(checkpoint, config.sampling.max_tokens, judge)
        attempts = [await domain.rollout(client, domain.heldout_problem(i)) for i in range(problems)]
    return sum(attempt.success for attempt in attempts) / problems


def main() -> None:
    parser = command_parser("benchmarks.plain_generate", __doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--problems", type=positive_int, default=1000)
    options = parser.parse_args()
    checkpoint = options.run_dir / "checkpoints" / "final"
    for needed in (options.run_dir / "config.yaml", checkpoint, options.run_dir / "summary.json"):
        if not needed.exists():
            refuse(parser, f"there is no {needed}; name the directory of a run that has ended")
    torch.manual_seed(0)
    rate = asyncio.run(success(load_config(options.run_dir), checkpoint, options.problems))
    recorded = json.loads((options.run_dir / "summary.json").read_text())["heldout_success_end"]
    print(f"plain generate: {rate:.3f} of {options.problems} problems; in the run: {recorded:.3f}")


if __name__ == "__main__":
    main()
