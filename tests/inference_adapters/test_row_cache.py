"""Rows of one cache compute what each request computes alone, for every family that is served by rows."""

import pytest
import torch

from inference_adapters.transformers.decided import ROWS
from inference_adapters.transformers.row_cache import RowCache
from tests.trainer_adapters.architectures import published_config, tiny_model

WRAPPERS = {"qwen3_5", "qwen3_5_moe"}  # their causal model is that of their text config
TOLERANCE = 3e-5  # nats


def ids(count: int, seed: int) -> list[int]:
    return torch.randint(3, 150, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("kind", sorted(ROWS - WRAPPERS))
def test_requests_that_join_and_leave(kind):
    model = tiny_model(published_config(kind))
    model.set_attn_implementation("sdpa")
    prompts = [ids(9, seed=1), ids(23, seed=2), ids(1, seed=3), ids(5, seed=4)]
    cache = RowCache(model)
    rows: list[list[int]] = []
    found: list[tuple[list[int], torch.Tensor]] = []  # tokens so far, logits of the next

    def begin(prompt, count):
        logits = cache.prefill(prompt, count)
        found.extend((prompt, row) for row in logits)
        rows.extend([*prompt] for _ in range(count))

    def decode(seed):
        new = ids(len(rows), seed)
        for row, token in zip(rows, new, strict=True):
            row.append(token)
        found.extend(([*row], logits) for row, logits in zip(rows, cache.decode(new), strict=True))

    begin(prompts[0], 2)
    decode(10)
    begin(prompts[1], 1)
    decode(11)
    cache.keep([0, 2])
    del rows[1]
    begin(prompts[2], 1)
    decode(12)
    cache.keep([2])
    rows[:2] = []
    assert cache.width == 2  # the columns of the longer rows are gone
    begin(prompts[3], 1)
    decode(13)
    cache.keep([])
    rows.clear()
    begin(prompts[1], 1)

    with torch.inference_mode():
        for tokens, logits in found:
            alone = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            assert (logits.log_softmax(-1) - alone.log_softmax(-1)).abs().max() < TOLERANCE
