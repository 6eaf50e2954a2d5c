"""Every objective with its oracle.

Parameters are chosen so that their bounds apply to some tokens of a random step and not to others.
"""

from collections.abc import Sequence
from typing import NamedTuple

from contracts.records import TrainingSequence
from pipelinerl.objectives.base import Objective
from pipelinerl.objectives.cispo import Cispo
from pipelinerl.objectives.decoupled_ppo import DecoupledPpo
from pipelinerl.objectives.entropy import EntropyBonus
from pipelinerl.objectives.gspo import Gspo
from pipelinerl.objectives.icepop import IcePop
from pipelinerl.objectives.kl import KlToReference
from pipelinerl.objectives.mirror_descent import MirrorDescent
from pipelinerl.objectives.ppo_clip import PpoClip
from pipelinerl.objectives.reinforce import Reinforce
from pipelinerl.objectives.two_sided_clip import TwoSidedClip
from pipelinerl.objectives.value_baseline import ValueBaseline
from tests.objectives import oracles
from tests.objectives.batches import Tables
from tests.objectives.oracles import Oracle, Token


class Case(NamedTuple):
    objective: Objective
    oracle: Oracle
    proximal: bool = False  # whether the batch has π_prox


CASES = {
    "reinforce": Case(Reinforce(1.3), oracles.reinforce(1.3)),
    "ppo_clip": Case(PpoClip(0.2, 0.28), oracles.ppo_clip(0.2, 0.28)),
    "two_sided_clip": Case(TwoSidedClip(0.2, 0.3, 4.0), oracles.two_sided_clip(0.2, 0.3, 4.0)),
    "gspo": Case(Gspo(0.1, 0.15), oracles.gspo(0.1, 0.15)),
    "cispo": Case(Cispo(1.0, 4.0), oracles.cispo(1.0, 4.0)),
    "cispo_low": Case(Cispo(0.3, 2.0), oracles.cispo(0.3, 2.0)),
    "icepop": Case(IcePop(0.5, 5.0), oracles.icepop(0.5, 5.0)),
    "mirror_descent": Case(MirrorDescent(0.1), oracles.mirror_descent(0.1)),
    "decoupled_ppo": Case(DecoupledPpo(0.2, 0.25, 1.3), oracles.decoupled_ppo(0.2, 0.25, 1.3), proximal=True),
    "decoupled_ppo_first_epoch": Case(DecoupledPpo(0.2, 0.25, 1.3), oracles.decoupled_ppo(0.2, 0.25, 1.3)),
    "kl": Case(KlToReference(0.04), oracles.kl_to_reference(0.04)),
    "entropy": Case(EntropyBonus(0.01), oracles.entropy_bonus(0.01)),
    "value_ppo_clip": Case(
        ValueBaseline(PpoClip(0.2, 0.28), 0.5), oracles.value_baseline(oracles.ppo_clip(0.2, 0.28), 0.5)
    ),
    "value_gspo": Case(
        ValueBaseline(Gspo(0.1, 0.15), 0.3), oracles.value_baseline(oracles.gspo(0.1, 0.15), 0.3)
    ),
}


def tokens_of(sequences: Sequence[TrainingSequence], tables: Tables, proximal: bool = False) -> list[Token]:
    """Returns the input of oracles from the records and the tables, independently of the packed batch."""
    return [
        Token(
            rollout=sequence.rollout_id,
            in_loss=bool(sequence.loss_mask[i]),
            weight=sequence.loss_weight,
            advantage=float(sequence.advantages[i]),
            logprob=float(tables.logprobs[token_id]),
            behaviour=float(sequence.behaviour_logprobs[i]),
            reference=float(sequence.reference_logprobs[i]),
            proximal=float(tables.proximal[token_id]) if proximal else None,
            entropy=float(tables.entropy[token_id]),
            value=float(tables.values[token_id]),
        )
        for sequence in sequences
        for i, token_id in enumerate(sequence.token_ids)
    ]
