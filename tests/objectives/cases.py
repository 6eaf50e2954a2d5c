"""Every objective with its oracle.

Parameters are chosen so that their bounds apply to some tokens of a random step and not to others.
"""

from collections.abc import Sequence
from typing import NamedTuple

from contracts.records import TrainingSequence
from pipelinerl.objectives.base import Objective
from pipelinerl.objectives.cispo import Cispo
from pipelinerl.objectives.cross_entropy import CrossEntropy
from pipelinerl.objectives.decoupled_ppo import DecoupledPpo
from pipelinerl.objectives.distillation import Distillation
from pipelinerl.objectives.dpo import Dpo
from pipelinerl.objectives.dppo import Dppo
from pipelinerl.objectives.entropy import EntropyBonus
from pipelinerl.objectives.entropy_selected import EntropySelected
from pipelinerl.objectives.gspo import Gspo
from pipelinerl.objectives.icepop import IcePop
from pipelinerl.objectives.kl import KlToReference
from pipelinerl.objectives.log_ratio_penalty import LogRatioPenalty
from pipelinerl.objectives.masked import Masked
from pipelinerl.objectives.mirror_descent import MirrorDescent
from pipelinerl.objectives.ppo_clip import PpoClip
from pipelinerl.objectives.reinforce import Reinforce
from pipelinerl.objectives.rules import (
    GeometricMask,
    OffPolicySequence,
    SequenceMask,
    SequenceTruncate,
    SmallestRatio,
    TokenMask,
    TokenTruncate,
)
from pipelinerl.objectives.two_sided_clip import TwoSidedClip
from pipelinerl.objectives.value_baseline import ValueBaseline
from tests.objectives import mask_oracles, oracles, trust_oracles
from tests.objectives.batches import Tables
from tests.objectives.oracles import Oracle, Token


class Case(NamedTuple):
    objective: Objective
    oracle: Oracle
    later_epoch: bool = False  # whether the batch has π_prox and V_0
    stops_gradient: bool = False  # in r or in a factor, so that the oracle's value is not its derivative's
    clips: bool = True  # some tokens; where the ratio is 1, none


PPO = (PpoClip(0.2, 0.28), oracles.ppo_clip(0.2, 0.28))
GSPO = (Gspo(0.1, 0.15), oracles.gspo(0.1, 0.15))
RULES = {
    "token_truncate": (TokenTruncate(1.3), mask_oracles.token_truncate(1.3)),
    "token_mask": (TokenMask(0.5, 1.5), mask_oracles.token_mask(0.5, 1.5)),
    "sequence_truncate": (SequenceTruncate(2.0), mask_oracles.sequence_truncate(2.0)),
    "sequence_mask": (SequenceMask(0.1, 10.0), mask_oracles.sequence_mask(0.1, 10.0)),
    "geometric_mask": (GeometricMask(0.8, 1.3), mask_oracles.geometric_mask(0.8, 1.3)),
    "smallest_ratio": (SmallestRatio(0.3), mask_oracles.smallest_ratio(0.3)),
    "off_policy_sequence": (OffPolicySequence(0.1), mask_oracles.off_policy_sequence(0.1)),
}
OF_ROLLOUTS = [name for name, (rule, _) in RULES.items() if rule.of_rollout]
MASKS = [name for name, (rule, _) in RULES.items() if not rule.weighs]


Policy = tuple[Objective, Oracle]


def masked(policy: Policy, *names: str, around: str = "behaviour", later: bool = False) -> Case:
    objective = Masked(policy[0], [RULES[name][0] for name in names], around)
    oracle = mask_oracles.masked(policy[1], {name: RULES[name][1] for name in names}, around)
    return Case(objective, oracle, later, stops_gradient=True, clips=later or around == "behaviour")


def selected(policy: Policy, share: float, stops_gradient: bool = False) -> Case:
    oracle = mask_oracles.entropy_selected(policy[1], share)
    return Case(EntropySelected(policy[0], share), oracle, stops_gradient=stops_gradient)


def kl(estimator: str, unbiased: bool) -> Case:
    objective = KlToReference(0.04, estimator, unbiased)
    oracle = oracles.kl_to_reference(0.04, estimator, unbiased)
    return Case(objective, oracle, stops_gradient=unbiased and estimator == "k2")


def gspo(base: str, by_token: bool, later: bool) -> Case:
    objective = Gspo(0.1, 0.15, base, by_token)
    is_one = base == "proximal" and not later
    oracle = oracles.gspo(0.1, 0.15, base, by_token)
    return Case(objective, oracle, later, by_token or is_one, clips=not is_one)


def mirror_descent(base: str, later: bool) -> Case:
    stops = base == "proximal" and not later
    return Case(MirrorDescent(0.1, base), oracles.mirror_descent(0.1, base), later, stops)


CASES = {
    "reinforce": Case(Reinforce(1.3), oracles.reinforce(1.3), stops_gradient=True),
    "ppo_clip": Case(*PPO),
    "two_sided_clip": Case(TwoSidedClip(0.2, 0.3, 4.0), oracles.two_sided_clip(0.2, 0.3, 4.0)),
    "gspo": Case(*GSPO),
    "gspo_proximal": gspo("proximal", False, later=True),
    "gspo_proximal_first_epoch": gspo("proximal", False, later=False),
    "gspo_token": gspo("behaviour", True, later=False),
    "gspo_token_proximal": gspo("proximal", True, later=True),
    "cispo": Case(Cispo(1.0, 4.0), oracles.cispo(1.0, 4.0), stops_gradient=True),
    "cispo_low": Case(Cispo(0.3, 2.0), oracles.cispo(0.3, 2.0), stops_gradient=True),
    "icepop": Case(IcePop(0.5, 5.0), oracles.icepop(0.5, 5.0)),
    "dppo": Case(Dppo(5e-4, 1e-3, signed=True), trust_oracles.dppo(5e-4, 1e-3)),
    "ipo": Case(Dppo(8e-4, 8e-4, signed=False), trust_oracles.ipo(8e-4)),
    "mirror_descent": mirror_descent("behaviour", later=False),
    "mirror_descent_proximal": mirror_descent("proximal", later=True),
    "mirror_descent_proximal_first_epoch": mirror_descent("proximal", later=False),
    "decoupled_ppo": Case(
        DecoupledPpo(0.2, 0.25, 1.3), oracles.decoupled_ppo(0.2, 0.25, 1.3), later_epoch=True
    ),
    "decoupled_ppo_first_epoch": Case(
        DecoupledPpo(0.2, 0.25, 1.3), oracles.decoupled_ppo(0.2, 0.25, 1.3), stops_gradient=True
    ),
    "cross_entropy": Case(CrossEntropy(), oracles.cross_entropy()),
    "dpo": Case(Dpo(0.3), oracles.dpo(0.3)),
    "kl_k3": kl("k3", unbiased=False),
    "kl_k2": kl("k2", unbiased=False),
    **{f"kl_{estimator}_unbiased": kl(estimator, unbiased=True) for estimator in ("k1", "k2", "k3")},
    "log_ratio_penalty": Case(LogRatioPenalty(0.3), trust_oracles.log_ratio_penalty(0.3)),
    "entropy": Case(EntropyBonus(0.01), oracles.entropy_bonus(0.01)),
    "value_ppo_clip": Case(ValueBaseline(PPO[0], 0.5), oracles.value_baseline(PPO[1], 0.5)),
    "value_gspo": Case(ValueBaseline(GSPO[0], 0.3), oracles.value_baseline(GSPO[1], 0.3)),
    "value_clipped": Case(
        ValueBaseline(PPO[0], 0.5, value_clip=0.2),
        oracles.value_baseline(PPO[1], 0.5, 0.2),
        later_epoch=True,
    ),
    "distillation": Case(
        Distillation(Reinforce(1.3), 0.0, 1.0),
        oracles.distillation(oracles.reinforce(1.3), 0.0, 1.0),
        stops_gradient=True,
    ),
    "distillation_with_rewards": Case(
        Distillation(PPO[0], 1.0, 0.3), oracles.distillation(PPO[1], 1.0, 0.3), stops_gradient=True
    ),
    **{f"masked_{rule}": masked(PPO, rule) for rule in MASKS},
    **{f"masked_{rule}_proximal": masked(PPO, rule, around="proximal", later=True) for rule in RULES},
    **{f"masked_{rule}_gspo": masked(GSPO, rule, around="proximal", later=True) for rule in OF_ROLLOUTS},
    "masked_first_epoch": masked(PPO, "token_truncate", around="proximal"),
    "masked_by_all": masked(PPO, *RULES, around="proximal", later=True),
    "value_gae": Case(
        ValueBaseline(PPO[0], 0.5, gae_lambda=0.9), oracles.value_baseline(PPO[1], 0.5, None, 0.9)
    ),
    "value_gae_later_epoch": Case(
        ValueBaseline(PPO[0], 0.5, None, 0.7, 0.95),
        oracles.value_baseline(PPO[1], 0.5, None, 0.7, 0.95),
        later_epoch=True,
    ),
    "value_gae_clipped": Case(
        ValueBaseline(PPO[0], 0.5, 0.2, 0.0, 0.5),
        oracles.value_baseline(PPO[1], 0.5, 0.2, 0.0, 0.5),
        later_epoch=True,
    ),
    "entropy_selected": selected(PPO, 0.2),
    "entropy_selected_half": selected((Reinforce(1.3), oracles.reinforce(1.3)), 0.5, True),
    "entropy_selected_all": selected(PPO, 1.0),
    "entropy_selected_masked": selected(masked(PPO, "geometric_mask")[:2], 0.3, True),
    "masked_entropy_selected": Case(
        Masked(EntropySelected(PPO[0], 0.2), [RULES["token_truncate"][0]], "proximal"),
        mask_oracles.masked(
            mask_oracles.entropy_selected(PPO[1], 0.2),
            {"token_truncate": RULES["token_truncate"][1]},
            "proximal",
        ),
        later_epoch=True,
        stops_gradient=True,
    ),
}


def tokens_of(
    sequences: Sequence[TrainingSequence], tables: Tables, later_epoch: bool = False
) -> list[Token]:
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
            proximal=float(tables.proximal[token_id]) if later_epoch else None,
            start_value=float(tables.start_values[token_id]) if later_epoch else None,
            entropy=float(tables.entropy[token_id]),
            value=float(tables.values[token_id]),
        )
        for sequence in sequences
        for i, token_id in enumerate(sequence.token_ids)
    ]
