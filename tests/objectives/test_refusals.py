"""Parameters that make no sense are refused where the objective is made, in one line that names them."""

import math

import pytest

from pipelinerl.filters import Overlong
from pipelinerl.objectives.cispo import Cispo
from pipelinerl.objectives.decoupled_ppo import DecoupledPpo
from pipelinerl.objectives.distillation import Distillation
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

CLIPPED = [
    PpoClip,
    Gspo,
    Cispo,
    lambda low, high: DecoupledPpo(low, high, 5.0),
    lambda low, high: TwoSidedClip(low, high, 4.0),
]


@pytest.mark.parametrize(
    "make, parameters, named",
    [
        *[(Reinforce, (cap,), "max_importance_weight") for cap in (0.0, -1.0, math.nan)],
        *[
            (make, epsilons, "epsilon")
            for make in CLIPPED
            for epsilons in [(-0.1, 0.2), (0.2, -0.1), (1.5, 0.2), (math.nan, 0.2), (0.2, math.nan)]
        ],
        *[(TwoSidedClip, (0.2, 0.2, delta), "delta") for delta in (1.2, 1.0, -4.0, math.nan)],
        *[
            (IcePop, bounds, "low < 1 < high")
            for bounds in [(0.0, 5.0), (-0.5, 5.0), (1.5, 5.0), (0.5, 0.9), (5.0, 0.5), (math.nan, 5.0)]
        ],
        *[(DecoupledPpo, (0.2, 0.2, cap), "max_behaviour_weight") for cap in (1.0, -5.0, math.inf, math.nan)],
        *[(MirrorDescent, (tau,), "tau") for tau in (0.0, -0.1, math.nan)],
        *[
            (make, (coefficient,), "coefficient")
            for make in (KlToReference, EntropyBonus, LogRatioPenalty)
            for coefficient in (0.0, -0.1, math.nan)
        ],
        *[(ValueBaseline, (Reinforce(5.0), c), "coefficient") for c in (0.0, -0.5, math.nan)],
        (ValueBaseline, ("reinforce", 0.5), "policy"),
        *[(ValueBaseline, (Reinforce(5.0), 0.5, clip), "value_clip") for clip in (0.0, -1.0, math.nan)],
        *[(ValueBaseline, (Reinforce(5.0), 0.5, None, lam), "gae_lambda") for lam in (-0.1, 1.1, math.nan)],
        *[(ValueBaseline, (Reinforce(5.0), 0.5, None, 1.0, lam), "value_lambda") for lam in (-0.1, 1.1)],
        (KlToReference, (0.1, "k4"), "estimator must be k1, k2 or k3"),
        (KlToReference, (0.1, "k1", False), "unbiased=true"),
        (Gspo, (0.2, 0.2, "reference"), "base must be behaviour or proximal"),
        (MirrorDescent, (0.1, "reference"), "base must be behaviour or proximal"),
        *[(Dppo, (*bounds, True), "epsilon") for bounds in [(0.0, 0.2), (0.2, 1.0), (math.nan, 0.2)]],
        *[
            (make, bounds, "low < 1 < high")
            for make in (TokenMask, SequenceMask, GeometricMask)
            for bounds in [(0.0, 5.0), (1.5, 5.0), (0.5, 0.9), (0.5, math.inf), (math.nan, 5.0)]
        ],
        *[(make, (cap,), "high") for make in (TokenTruncate, SequenceTruncate) for cap in (0.9, math.nan)],
        *[(SmallestRatio, (low,), "low") for low in (0.0, 1.0, math.nan)],
        *[(OffPolicySequence, (delta,), "delta") for delta in (0.0, -1.0, math.nan)],
        (Distillation, ("reinforce", 0.0, 1.0), "policy"),
        (Distillation, (Gspo(0.2, 0.2), 0.0, 1.0), "mean of a rollout's advantages"),
        *[(Distillation, (Reinforce(5.0), a, 1.0), "reward_weight") for a in (-1.0, math.inf, math.nan)],
        *[(Distillation, (Reinforce(5.0), 0.0, b), "teacher_weight") for b in (0.0, -1.0, math.nan)],
        *[(EntropySelected, (Reinforce(5.0), share), "share") for share in (0.0, 1.1, -0.2, math.nan)],
        (EntropySelected, ("reinforce", 0.2), "policy"),
        (EntropySelected, (Gspo(0.2, 0.2), 0.2), "Gspo has one term a rollout"),
        (EntropySelected, (Masked(MirrorDescent(0.1), [], "behaviour"), 0.2), "MirrorDescent has one term"),
        (EntropySelected, (ValueBaseline(Reinforce(5.0), 0.5), 0.2), "inside value_baseline"),
        (
            EntropySelected,
            (Masked(EntropySelected(Reinforce(5.0), 0.2), [], "behaviour"), 0.2),
            "once is enough",
        ),
        (
            Masked,
            (EntropySelected(Masked(Reinforce(5.0), [], "proximal"), 0.2), [], "proximal"),
            "all rules into one list",
        ),
        (
            Masked,
            (Distillation(Gspo(0.2, 0.2, by_token=True), 0.0, 1.0), [TokenTruncate(2.0)], "proximal"),
            "Gspo has one term a rollout",
        ),
        (Masked, ("ppo_clip", [], "behaviour"), "policy"),
        (Masked, (Reinforce(5.0), ["token_mask"], "behaviour"), "rule"),
        (Masked, (Reinforce(5.0), [], "both"), "around must be behaviour or proximal"),
        (Masked, (ValueBaseline(Reinforce(5.0), 0.5), [], "behaviour"), "inside value_baseline"),
        (Masked, (Gspo(0.2, 0.2), [TokenTruncate(2.0)], "proximal"), "take a rule of rollouts"),
        (Masked, (Masked(Gspo(0.2, 0.2), [], "proximal"), [], "proximal"), "put all rules into one list"),
        *[(Masked, (Reinforce(5.0), rules, "proximal"), "rules is a list") for rules in (None, 3, "x", {})],
        (Masked, (Reinforce(5.0), [Overlong()], "proximal"), "must be a rule"),
        *[(Gspo, (0.2, 0.2, "behaviour", word), "by_token must be true or false") for word in ("no", 1)],
        (Dppo, (0.2, 0.2, "off"), "signed must be true or false"),
        (KlToReference, (0.1, "k3", "no"), "unbiased must be true or false"),
        (ValueBaseline, (ValueBaseline(Reinforce(5.0), 0.5), 0.5), "one value baseline is enough"),
        (Reinforce, (math.inf,), "max_importance_weight"),
        (Cispo, (1.0, math.inf), "epsilon"),
        (IcePop, (0.5, math.inf), "low < 1 < high"),
        *[
            (Masked, (Reinforce(5.0), [rule], "behaviour"), "twice around behaviour: set around=proximal")
            for rule in (
                TokenTruncate(2.0),
                TokenMask(0.5, 2.0),
                SequenceTruncate(2.0),
                SequenceMask(0.5, 2.0),
            )
        ],
        (
            Masked,
            (Reinforce(5.0), [TokenMask(0.5, 2.0), TokenMask(0.1, 9.0)], "proximal"),
            "may be there once",
        ),
        (Distillation, (ValueBaseline(Reinforce(5.0), 0.5), 0.0, 1.0), "learned baseline"),
        (Distillation, (Masked(Gspo(0.2, 0.2), [], "proximal"), 0.0, 1.0), "mean of a rollout's"),
        (Masked, (MirrorDescent(0.1), [TokenMask(0.5, 2.0)], "proximal"), "take a rule of rollouts"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(make, parameters, named):
    with pytest.raises(ValueError, match=named) as refusal:
        make(*parameters)
    assert "\n" not in str(refusal.value)
