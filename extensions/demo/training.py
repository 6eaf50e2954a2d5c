"""Supervised training of the demo models."""

import math
from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from extensions.demo.examples import Batch

Report = Callable[[int, float], None]  # (number of steps, loss)


def muon_and_adamw(model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Returns Muon (Jordan et al. 2024) for matrices, with which some seeds take half as long, and AdamW."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def adamw(parameters: list[Tensor], learning_rate: float) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]


def fit(
    model: PreTrainedModel,
    optimizers: list[torch.optim.Optimizer],
    batches: Iterator[Batch],
    steps: int,
    warmup: int,
    report: Report = lambda step, loss: None,
) -> None:
    """Trains for `steps` steps, with a linear warm-up and a cosine decay to 0."""
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            o, lambda step: min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        )
        for o in optimizers
    ]
    for step, (ids, labels) in enumerate(islice(batches, steps)):
        logits = model(input_ids=ids).logits  # [B, T, V]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        model.zero_grad()
        report(step + 1, loss.item())
