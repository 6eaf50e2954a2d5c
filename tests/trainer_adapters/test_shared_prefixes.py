"""Sequences of a pack that begin alike are computed once, and score and learn as if each were alone."""

from itertools import accumulate, pairwise

import msgspec
import numpy as np
import pytest
import torch

from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import objective
from contracts.records import TrainingSequence
from contracts.trainer import PackedBatch
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import FAMILIES, make_sequences
from tests.trainer_adapters.workers import started
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.shared_prefixes import SharedPrefixes, rows_of


def shared_of(sequences: list[list[int]], temperatures: list[float]) -> SharedPrefixes:
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return SharedPrefixes.of(
        torch.tensor(sum(sequences, [])),
        torch.tensor(temperatures).repeat_interleave(lengths),
        torch.tensor([0, *accumulate(lengths.tolist())], dtype=torch.int32),
    )


def test_without_shared_prefixes_values_are_not_copied():
    shared = shared_of([[1, 2], [2, 1]], [1.0, 1.0])
    values = torch.arange(4)
    assert shared.to_pack(values) is shared.to_distinct(values) is values


@pytest.mark.parametrize("seed", range(20))
def test_two_tokens_are_the_same_exactly_if_all_up_to_them_is(seed):
    rng = np.random.default_rng(seed)
    sequences = [rng.choice([0, 1, 256, 2**31 - 1], rng.integers(1, 7)).tolist() for _ in range(40)]
    temperatures = rng.choice([0.7, 1.0], 40).tolist()
    shared = shared_of(sequences, temperatures)
    beginnings = [
        (temperature, tuple(sequence[: i + 1]))
        for sequence, temperature in zip(sequences, temperatures, strict=True)
        for i in range(len(sequence))
    ]
    numbers = {beginning: i for i, beginning in enumerate(dict.fromkeys(beginnings))}
    assert len(shared.distinct) == len(numbers)
    found = {}
    for beginning, slot in zip(beginnings, shared.slots.tolist(), strict=True):
        assert found.setdefault(beginning, slot) == slot


def group(seed: int = 0) -> list[TrainingSequence]:
    """Two groups whose members differ after 9 tokens; two members are equal but for their advantages."""
    sequences = make_sequences([12, 20, 12, 9, 15, 33, 9], seed)
    first = sequences[0]
    alike = [
        msgspec.structs.replace(
            s, temperature=first.temperature, token_ids=np.concatenate([first.token_ids[:9], s.token_ids[9:]])
        )
        for s in sequences[:5]
    ]
    alike[2] = msgspec.structs.replace(alike[2], token_ids=first.token_ids)
    return [*alike, *sequences[5:]]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_each_sequence_alone(models, family):
    sequences = group()
    batch = PackedBatch.pack(sequences)
    plain = Reference(models[family])
    expected = plain.scores(sequences)
    seen = []
    with started(FSDPTrainer(logits_chunk=7), models[family]) as worker:
        embedding = worker._model.get_input_embeddings()
        embedding.register_forward_hook(lambda _, given, __: seen.append(given[0].numel()))
        scores = worker.forward(batch, entropy=True)
        worker.backward(objective(scores, batch, entropy=False))
        gradients = {name: p.grad.clone() for name, p in worker._model.named_parameters()}
    torch.testing.assert_close(scores.logprobs, expected.logprobs, atol=2e-5, rtol=0)
    torch.testing.assert_close(scores.entropy, expected.entropy, atol=2e-5, rtol=0)
    reference.assert_close(gradients, plain.gradients(sequences, entropy=False))
    assert seen == [9 + 3 + 11 + 6 + 33 + 9]


def test_values_are_of_every_sequence(models):
    sequences = group()
    batch = PackedBatch.pack(sequences)
    bounds = list(pairwise(batch.cu_seqlens.tolist()))
    with started(FSDPTrainer(value_head=True), models["qwen2"]) as worker:
        torch.nn.init.normal_(worker._scorer.value_head.weight)
        together = worker.forward(batch).values
        alone = [worker.forward(PackedBatch.pack([sequence])).values for sequence in sequences]
    for (begin, end), values in zip(bounds, alone, strict=True):
        torch.testing.assert_close(together[begin:end], values, atol=1e-5, rtol=0)


def test_too_few_common_tokens_are_not_worth_it():
    sequences = [[0, *range(10 * i + 1, 10 * i + 11)] for i in range(20)]
    shared = shared_of(sequences, [1.0] * 20)
    assert len(shared.distinct) == 201
    longer = [[*sequence, *range(1000 * i, 1000 * i + 9)] for i, sequence in enumerate(sequences, 1)]
    assert len(shared_of(longer, [1.0] * 20).distinct) == 400


def test_gradients_of_many_members_are_added_in_float32():
    values = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    rows_of(values, torch.tensor([0] * 512 + [1])).sum().backward()
    assert values.grad.dtype == torch.bfloat16
    assert values.grad.tolist() == [[512.0] * 3, [1.0] * 3]  # a sum of ones in bfloat16 ends at 256
