"""Supervised steps, and the share of problems one sample solves."""

import math
from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipelinerl.demo_model.lessons import Batch
from pipelinerl.domains.base import Problem
from pipelinerl.domains.reasoning_gym import SOLVED, ReasoningGym

MAX_NEW_TOKENS = 8  # the longest answer has four characters and the end

Report = Callable[[int, float], None]  # supervised steps made, loss


def fit(
    model: PreTrainedModel,
    batches: Iterator[Batch],
    steps: int,
    learning_rate: float,
    warmup: int,
    report: Report = lambda step, loss: None,
) -> None:
    """AdamW; the learning rate rises over `warmup` steps and falls to zero along a cosine."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    for step, (ids, labels) in enumerate(islice(batches, steps)):
        falling = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / warmup) * falling
        logits = model(input_ids=ids).logits  # [B, T, V]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step + 1, loss.item())


@torch.no_grad()
def sampled_success(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    domain: ReasoningGym,
    problems: list[Problem],
) -> float:
    """Share of the problems that one sample at temperature 1 solves."""
    prompts = tokenizer.apply_chat_template(
        [p.messages for p in problems],
        add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    outputs = model.generate(
        **prompts, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_NEW_TOKENS
    )
    answers = tokenizer.batch_decode(outputs[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(domain.score(a, p) >= SOLVED for a, p in zip(answers, problems, strict=True)) / len(problems)
