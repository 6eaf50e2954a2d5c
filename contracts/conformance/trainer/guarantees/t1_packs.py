"""The packs that T1 scores, one for each rank."""

import msgspec
import numpy as np

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.groups import make_groups
from contracts.conformance.trainer.guarantees.t1_scores import Pack
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import LENGTHS, make_long_pack, make_sequences
from contracts.token_fields import TokenField

FIELD = "confidence"
COLD = 0.2  # a temperature; a lower one multiplies rounding errors beyond the tolerance
TOKEN_FIELDS = {FIELD: TokenField(dtype="float32", fill=0.0)}


def make_packs(reference: Reference, bench: Bench) -> list[list[Pack]]:
    """Returns packs as [pack][rank].

    The second pack repeats the first one's sequences at odd indices, among other sequences. In the fourth,
    all ranks but the first are idle. The last has sequences at a low temperature.
    """
    model = reference.path
    first, other = (_of_every_rank(bench, model, LENGTHS, seed) for seed in (10, 50))
    second = [
        [a if i % 2 else b for i, (a, b) in enumerate(zip(*pair, strict=True))]
        for pair in zip(first, other, strict=True)
    ]
    idle: list[Pack] = [[] for _ in first]
    cold = [[msgspec.structs.replace(s, temperature=COLD) for s in pack[:3]] for pack in first]
    return [first, second, [pack[2:3] for pack in first], [first[0], *idle[1:]], idle, cold]


def long_packs(reference: Reference, bench: Bench) -> list[Pack]:
    """Returns packs that are longer than the blocks in which a backend may work."""
    return [
        _with_token_fields(make_long_pack(reference.path, bench.options, reference.context, 70 + 2 * rank))
        for rank in range(bench.ranks)
    ]


def group_packs(reference: Reference, bench: Bench) -> list[Pack]:
    """Returns packs of sequences with common prefixes."""
    return [_with_token_fields(make_groups(reference.path, 90 + rank)) for rank in range(bench.ranks)]


def _of_every_rank(bench: Bench, model: str, lengths: list[int], seed: int) -> list[Pack]:
    """Returns a pack for each rank; every other rank has the lengths in reverse."""
    return [
        _with_token_fields(make_sequences(model, lengths[:: -1 if rank % 2 else 1], seed + rank))
        for rank in range(bench.ranks)
    ]


def _with_token_fields(pack: Pack) -> Pack:
    return [
        msgspec.structs.replace(
            s, token_fields={FIELD: np.linspace(0, 1, len(s.token_ids), dtype=np.float32)}
        )
        for s in pack
    ]
