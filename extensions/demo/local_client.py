"""A chat client of a model in this process, to measure the success of a demo model by rollouts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from extensions.demo.prompts import Prompts
from pipelinerl.domains.base import Answer, Domain, Problem
from pipelinerl.domains.judges import judge_of
from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.wire import Judgement


class LocalChatClient:
    """A chat client that samples from `model` at temperature 1, with concurrent requests in one batch."""

    def __init__(self, model: PreTrainedModel, prompts: Prompts, max_tokens: int):
        self.model = model
        self.prompts = prompts
        self._max_tokens = max_tokens
        self._pending: list[tuple[list[int], asyncio.Future]] = []
        self._judge: JudgingClient | None = None

    def success(self, domain: Domain, problems: Sequence[Problem]) -> float:
        """Returns the share of the problems that one sample solves."""
        return asyncio.run(self._success(domain, problems))

    async def _success(self, domain: Domain, problems: Sequence[Problem]) -> float:
        async with judge_of(domain) as self._judge:
            attempts = await asyncio.gather(*(domain.rollout(self, problem) for problem in problems))
        return sum(attempt.success for attempt in attempts) / len(problems)

    async def chat(self, messages: list[dict[str, str]], after: Answer | None = None) -> Answer:
        answer = asyncio.get_running_loop().create_future()
        self._pending.append((self.prompts.of(messages, after), answer))
        if len(self._pending) == 1:
            await asyncio.sleep(0)  # until all other rollouts have added their requests
            self._answer_all()
        return await answer

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        return await self._judge.judged(verifier, task, text)

    def _answer_all(self) -> None:
        pending = self._pending
        self._pending = []
        prompts = [prompt for prompt, _ in pending]
        for (prompt, answer), sampled in zip(pending, self._sampled(prompts), strict=True):
            answer.set_result(self.prompts.answer(prompt, sampled))

    @torch.no_grad()
    def _sampled(self, prompts: list[list[int]]) -> list[list[int]]:
        tokenizer = self.prompts.tokenizer
        padded = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")  # on the left
        outputs = self.model.generate(
            **padded, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=self._max_tokens
        )
        new = outputs[:, padded["input_ids"].shape[1] :].tolist()
        return [[token for token in row if token != tokenizer.pad_token_id] for row in new]
