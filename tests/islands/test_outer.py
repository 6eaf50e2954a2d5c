"""The outer optimizer by itself: torch's SGD, and the replay of kept gradients."""

from dataclasses import replace

import pytest
import torch

from trainer_adapters.islands.outer import Outer, OuterGradient, ReplayError
from trainer_adapters.islands.quantise import QUANTISERS
from trainer_adapters.islands.ring import Partition

ELEMENTS = 1000
PARTITION = Partition(ELEMENTS, 3, 256)


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))


def gradient_of(outer: Outer, values: torch.Tensor, weight: float, quantise: str = "none") -> OuterGradient:
    messages = [QUANTISERS[quantise].encode(values[begin:end]) for begin, end in PARTITION.spans()]
    return OuterGradient(outer.round, outer.lineage, {"a": 4}, weight, quantise, PARTITION, messages)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torch_s_sgd(momentum):
    outer = Outer(drawn(0), lr=0.7, momentum=momentum)
    parameter = drawn(0).requires_grad_()
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=momentum, nesterov=momentum > 0)
    for seed in range(1, 4):
        outer.step(gradient_of(outer, 2.5 * drawn(seed), weight=2.5))
        parameter.grad = drawn(seed)
        sgd.step()
        torch.testing.assert_close(outer.anchor, parameter.detach(), rtol=1e-5, atol=1e-6)
    assert outer.round == 3


def test_a_replay_that_does_not_fit_changes_nothing():
    made = Outer(drawn(0), lr=0.7, momentum=0.9)
    kept = []
    for seed in range(1, 4):
        kept.append(gradient_of(made, drawn(seed), weight=1))
        made.step(kept[-1])
    changed = [message.clone() for message in kept[0].messages]
    changed[2][5] ^= 1
    of_another = gradient_of(Outer(drawn(9), 1, 0), drawn(1), weight=1)
    for gradients, end in [
        (kept[1:], 3),  # one is missing at the start
        ([kept[0], kept[2]], 2),
        (kept, 2),  # too many
        (kept[:2], 3),  # too few
        ([of_another], 1),
        ([replace(kept[0], messages=changed), *kept[1:]], 3),
        ([replace(kept[0], weight=2.0), *kept[1:]], 3),
    ]:
        outer = Outer(drawn(0), lr=0.7, momentum=0.9)
        with pytest.raises(ReplayError):
            outer.replay(gradients, end)
        assert outer.anchor.equal(drawn(0)) and not outer.momentum.any() and outer.round == 0
