"""The ring over real gloo groups: every member has the bytes of the oracle, for ragged sizes too."""

import threading

import pytest
import torch

from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import LinkError, Partition, Ring
from tests.extensions.islands import oracle
from tests.extensions.islands.groups import over_gloo
from tests.limits import HANG_S

MEMBERS = (1, 2, 3, 4, 5)
SIZES = (1, 256, 700, 2305)


def vectors(members: int, elements: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(members * 10_000 + elements)
    return [torch.randn(elements, generator=generator) for _ in range(members)]


def summed(
    own: list[torch.Tensor], name: str = "blocks", chunk: int = 512
) -> list[tuple[list[torch.Tensor], int]]:
    """Returns the messages of every member, and the bytes that it sent."""
    partition = Partition(len(own[0]), len(own), chunk)

    def member(group, rank):
        ring = Ring(group, rank, len(own), HANG_S)
        messages = ring.sum(lambda begin, end: own[rank][begin:end].clone(), partition, QUANTISERS[name])
        return messages, ring.sent

    return over_gloo(len(own), member)


def decoded(messages: list[torch.Tensor], partition: Partition, name: str) -> torch.Tensor:
    pairs = zip(messages, partition.spans(), strict=True)
    return torch.cat([QUANTISERS[name].decode(message, end - begin) for message, (begin, end) in pairs])


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("members", MEMBERS)
def test_every_member_has_the_bytes_of_the_oracle(members, elements):
    own = vectors(members, elements)
    expected = oracle.ring([vector.tolist() for vector in own])
    for messages, _ in summed(own, chunk=4096):
        assert [bytes(message.tolist()) for message in messages] == [part for part in expected if part]


@pytest.mark.parametrize("members", MEMBERS)
def test_without_a_code_the_sum_is_that_of_float32(members):
    own = vectors(members, 700)
    values = [decoded(messages, Partition(700, members, 512), "none") for messages, _ in summed(own, "none")]
    torch.testing.assert_close(values[0], torch.stack(own).sum(0))
    assert all(each.equal(values[0]) for each in values)


@pytest.mark.parametrize("members", MEMBERS)
def test_the_bytes_are_counted_and_are_what_the_design_computes(members):
    elements = members * 256 * 8  # equal parts
    own = vectors(members, elements)
    for _, sent in summed(own, chunk=512):
        assert sent == 2 * (members - 1) / members * (1 + 4 / 256) * elements


@pytest.mark.parametrize("here", [[0, 2, 3], [1, 2], [3]])
def test_some_of_the_members_continue_without_the_others(here):
    own = vectors(len(here), 700)
    expected = oracle.ring([vector.tolist() for vector in own])
    partition = Partition(700, len(here), 4096)

    def member(group, rank):
        ring = Ring(group, rank, 4, HANG_S)
        assert ring.gather(bytes([rank])) == [bytes([each]) for each in range(4)]
        if rank not in here:
            return None
        ring.continue_with(here, HANG_S)
        vector = own[here.index(rank)]
        messages = ring.sum(lambda begin, end: vector[begin:end].clone(), partition, QUANTISERS["blocks"])
        assert ring.gather(bytes([rank])) == [bytes([each]) for each in here]
        return [bytes(message.tolist()) for message in messages]

    assert over_gloo(4, member) == [expected if rank in here else None for rank in range(4)]


def test_a_silent_member_is_waited_for_until_the_deadline():
    ended = threading.Event()

    def member(group, rank):
        if rank == 1:
            ended.wait()
            return
        try:
            with pytest.raises(LinkError, match="imed out"):
                Ring(group, rank, 2, within_s=0.5).gather(b"record")
        finally:
            ended.set()

    over_gloo(2, member)


def test_an_exchange_ends_at_its_deadline():
    def member(group, rank):
        ring = Ring(group, rank, 2, within_s=0)
        with pytest.raises(LinkError, match="exceeded timeout_s"):
            ring.gather(b"record")

    over_gloo(2, member)
