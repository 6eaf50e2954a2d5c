"""How large a delta is, by the learning rate: Adam's steps on a random model, published in bfloat16."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from benchmarks.publish import model_config
from extensions.stored_weights.store.delta import encode_delta
from extensions.stored_weights.store.manifest import StoredParameter

LEARNING_RATES = (5e-4, 5e-5, 1e-5, 2e-6, 1e-6)
STEPS = 44  # of which the last ones are counted: in the first ones, Adam's steps are larger
COUNTED = 4
SHAPE = (6720, 256, 4)  # vocabulary, hidden size and layers
SEQUENCES = 4
TOKENS = 64
HEAD = "| learning rate | elements that changed | delta / full | encoded in, s |\n|---|---|---|---|"


@dataclass(frozen=True)
class Delta:
    """One delta: shares of the elements and of the bytes of a full version, and seconds to encode it."""

    changed: float
    size: float
    seconds: float


def rows() -> Iterator[str]:
    yield HEAD
    for rate in LEARNING_RATES:
        found = deltas(rate)
        changed = mean(each.changed for each in found)
        size = mean(each.size for each in found)
        seconds = mean(each.seconds for each in found)
        yield f"| {rate:g} | {changed:.2%} | {size:.2%} | {seconds:.2f} |"


def deltas(rate: float) -> list[Delta]:
    """Returns the deltas of the last steps."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(model_config(*SHAPE))
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    found = []
    before = published(model)
    for step in range(STEPS):
        tokens = torch.randint(2, SHAPE[0], (SEQUENCES, TOKENS))
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        after = published(model)
        if step >= STEPS - COUNTED:
            found.append(delta(before, after))
        before = after
    return found


def published(model: Qwen2ForCausalLM) -> dict[str, torch.Tensor]:
    return {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}


def delta(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> Delta:
    pairs = [(_described(name, new), _raw(before[name]), _raw(new)) for name, new in after.items()]
    total = sum(new.nbytes for _, _, new in pairs)
    changed = sum(int((before[name] != new).sum()) for name, new in after.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "delta"
        began = time.process_time()
        encode_delta(pairs, path)
        return Delta(changed / (total / 2), path.stat().st_size / total, time.process_time() - began)


def _described(name: str, tensor: torch.Tensor) -> StoredParameter:
    return StoredParameter(name=name, dtype="bfloat16", shape=tuple(tensor.shape), sha256="0" * 64)


def _raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
