"""Supervised steps, and the share of problems one sample solves."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipelinerl.demo_model.lessons import Batch
from pipelinerl.domains.base import Problem
from pipelinerl.domains.reasoning_gym import SOLVED, ReasoningGym

SMOOTHING = 0.95  # of the loss, over about 20 steps
MAX_NEW_TOKENS = 8  # the longest solution has four characters and the end

Report = Callable[[int, float], None]  # supervised step, smoothed loss


def warm_constant(peak: float, warmup: int) -> Callable[[int], float]:
    return lambda step: peak * min(1.0, (step + 1) / warmup)


def cosine_to_zero(peak: float, steps: int) -> Callable[[int], float]:
    return lambda step: peak * 0.5 * (1 + math.cos(math.pi * step / steps))


def fit(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    learning_rate: Callable[[int], float],
    max_steps: int,
    until_loss: float = 0.0,
    report: Report = lambda step, loss: None,
) -> None:
    """Trains for `max_steps`, or until the smoothed loss is below `until_loss`."""
    smoothed = math.inf
    for step, (ids, labels) in zip(range(max_steps), batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        logits = model(input_ids=ids).logits  # [B, T, V]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        smoothed = loss.item() if step == 0 else SMOOTHING * smoothed + (1 - SMOOTHING) * loss.item()
        report(step + 1, smoothed)
        if smoothed < until_loss:
            return


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
    return sum(domain.score(a, p) >= SOLVED for a, p in zip(answers, problems)) / len(problems)
