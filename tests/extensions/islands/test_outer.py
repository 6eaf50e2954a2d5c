"""The outer optimizer by itself: the replay of kept gradients."""

from dataclasses import replace

import pytest
import torch

from extensions.islands.outer import Outer, OuterGradient, ReplayError
from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import Partition

ELEMENTS = 1000
PARTITION = Partition(ELEMENTS, 3, 256)


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))


def gradient_of(outer: Outer, values: torch.Tensor) -> OuterGradient:
    messages = [QUANTISERS["none"].encode(values[begin:end]) for begin, end in PARTITION.spans()]
    return OuterGradient(outer.round, outer.lineage, {"a": 4}, 1, "none", PARTITION, messages)


def test_a_replay_that_does_not_fit_changes_nothing():
    made = Outer(drawn(0), lr=0.7, momentum=0.9)
    kept = []
    for seed in range(1, 4):
        kept.append(gradient_of(made, drawn(seed)))
        made.step(kept[-1])
    changed = [message.clone() for message in kept[0].messages]
    changed[2][5] ^= 1
    of_another = gradient_of(Outer(drawn(9), 1, 0), drawn(1))
    for gradients, end in [
        (kept[1:], 3),  # one is missing at the start
        ([kept[0], kept[2]], 2),
        (kept, 2),  # too many
        (kept[:2], 3),  # too few
        ([of_another], 1),
        ([replace(kept[0], partition=Partition(ELEMENTS - 1, 3, 256))], 1),
        ([replace(kept[0], messages=changed), *kept[1:]], 3),
        ([replace(kept[0], weight=2.0), *kept[1:]], 3),
    ]:
        outer = Outer(drawn(0), lr=0.7, momentum=0.9)
        with pytest.raises(ReplayError):
            outer.replay(gradients, end)
        assert outer.anchor.equal(drawn(0)) and not outer.momentum.any() and outer.round == 0
