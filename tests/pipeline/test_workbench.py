"""Runs in miniature with the workbench's parts that need more than one process."""

import json
from collections import defaultdict

import numpy as np
import pytest
from pydantic import ValidationError

from benchmarks.recipes import RECIPES
from contracts.records import Evaluated
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.components import check_components
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT
from tests.pipeline.runs import MINIATURE, records, run_to_the_end, start

KL = "regularisers=[{_target_: pipelinerl.objectives.kl.KlToReference, coefficient: 0.01}]"


def trainer_metrics(run_dir, name: str) -> list[float]:
    lines = map(json.loads, (run_dir / "metrics" / "trainer.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def test_a_reference_server_scores_what_is_trained_on(tmp_path):
    """The scripted server's own model, which is not the trainer's, so that the divergence is not zero.

    It scores every answer after the same short prompt, so a first token has one score in all problems.
    """
    run = tmp_path / "run"
    told = ("domain._target_=tests.told_domain.ToldDomain", "eval.every=null")
    summary = run_to_the_end(run, "reference=scripted", KL, "max_steps=3", *told)
    assert summary["accounting_errors"] == []
    trained = [s for row in records(run, "rows") for micro_batch in row.micro_batches for s in micro_batch]
    of_first_tokens: dict[int, set[float]] = defaultdict(set)
    for sequence in trained:
        scores, sampled = sequence.reference_logprobs, sequence.loss_mask
        assert scores.shape == sequence.token_ids.shape
        assert not scores[~sampled].any() and np.all(scores[sampled] < 0)
        of_first_tokens[sequence.token_ids[sampled][0]].add(scores[sampled][0])
    # Scores differ by rounding, because which sequences are scored together depends on the machine.
    assert all(np.ptp([*found]) < 1e-5 for found in of_first_tokens.values()) and len(trained) >= 3 * 32
    # The first rollouts were sampled by version 0, which the trainer had published: not by the reference.
    first = next(s for s in trained if s.versions.max() == 0)
    sampled = first.loss_mask
    assert not np.allclose(first.reference_logprobs[sampled], first.behaviour_logprobs[sampled], atol=1e-3)
    assert min(trainer_metrics(run, "kl_to_reference")) > 0
    assert (run / "logs" / "reference.log").exists()


def test_rules_scales_and_samplers_around_others_train_on_the_last_segments(tmp_path):
    run = tmp_path / "run"
    inside = ["objective@objective.policy=reinforce", "advantage@advantage.advantage=group_mean"]
    outside = ["objective=masked", "advantage=step_std", "sampler=retiring", *inside]
    segments = ["sampling.max_tokens=12", "rollout.segment_tokens=4", "rollout.train_segments=last"]
    settings = [*outside, *segments, "max_steps=6", "checkpoint.every=1", "inference.concurrency=8"]
    summary = run_to_the_end(run, *settings)
    assert summary["accounting_errors"] == [] and summary["sequences_multi_version"] > 0
    assert len(trainer_metrics(run, "masked_token_truncate")) == 6
    cut = [c for r in records(run, "rollouts") if not r.failed for c in r.completions if c.segments]
    assert cut and all(c.segments == [4, 8][: len(c.segments)] for c in cut)
    of_steps: dict[int, dict[str, float]] = {}
    for row in records(run, "rows"):
        for sequence in (s for micro_batch in row.micro_batches for s in micro_batch):
            assert sequence.loss_mask.sum() <= 4
            of_steps.setdefault(row.step, {})[sequence.rollout_id] = float(np.abs(sequence.advantages).max())
    for advantages in of_steps.values():  # of one turn each, and with a mean of 0 in every group
        squares = np.square([*advantages.values()])
        assert squares.sum() / (len(squares) - 1) == pytest.approx(1, rel=0.01)
    states = records(run, "sampler_states")
    assert all(state.state.keys() == {"inside", "retired"} for state in states) and states


class NeedsValues:
    needs_values = True

    def __call__(self, scores, batch):
        raise NotImplementedError


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_can_be_planned(recipe):
    config = compose_config([f"+exp={recipe}"])
    check_components(config)
    assert config.max_steps <= 200 and config.sampling.max_tokens in (16, 20)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["advantage=value"], "Return needs trainer.value_head=true"),
        (
            [
                *("objective=masked", f"objective.policy._target_={__name__}.NeedsValues"),
                *("~objective.policy.epsilon_low", "~objective.policy.epsilon_high"),
            ],
            "trainer.value_head=true",
        ),
        ([KL], "KlToReference needs a reference server: set reference=transformers"),
        (["rollout.train_segments=last"], "set rollout.segment_tokens"),
        (["rollout.repetition={window: 1, times: 2}"], "set rollout.segment_tokens"),
        (
            ["rewards=[{_target_: pipelinerl.rewards.repetition.Repetition, penalty: 1}]"],
            "rollout.repetition",
        ),
        (["normalisation=dr_grpo", "normalisation.max_tokens=0"], "max_tokens must be positive"),
    ],
)
def test_what_means_nothing_together_is_refused(settings, says):
    with pytest.raises((PlanError, ValidationError), match=says):
        check_components(compose_config([*MINIATURE, *settings]))


def test_the_learning_rate_follows_steps_whatever_their_epochs():
    spec = compose_config([*MINIATURE, "epochs=4"]).updates_of_optimizer
    assert (spec.warmup_steps, spec.decay_steps) == (20, 400)


def test_every_shipped_choice_can_be_composed_and_built():
    for group in ("objective", "advantage", "normalisation", "sampler"):
        for file in sorted((ROOT / "conf" / group).glob("*.yaml")):
            if file.stem in ("value", "value_baseline", "curriculum", "mixed"):
                continue  # need a value head, a domain with labels, a mixture: tested with those
            if file.stem in ("cross_entropy", "dpo", "constant"):
                continue  # need answers of a file: tests/pipeline/test_demonstrations.py
            needed = ["reference=scripted"] if file.stem == "distillation" else []
            check_components(compose_config([*MINIATURE, f"{group}={file.stem}", *needed]))


def test_what_a_run_says_in_a_pipe_is_a_line_each(tmp_path, monkeypatch):
    """Its steps, its evaluations and a warning sign, without control characters."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = tmp_path / "run"
    sensitive = "health.window=3", "health.ess_floor=0.99999", "optimizer.lr=0.1", "optimizer.warmup_steps=1"
    launcher = start(run, *sensitive, "max_steps=6", "eval.every=4")
    output, err = launcher.communicate()
    assert launcher.returncode == 0, err
    assert trainer_metrics(run, "alarm_ess_collapsed") == [1.0]
    assert output.count("ess_collapsed: few tokens carry the step") == 1
    lines = output.splitlines()
    steps = [line.split(" | ")[0] for line in lines if line.startswith("step ") and " | " in line]
    assert steps == [f"step {step}/6" for step in range(1, 7)]
    told = [line for line in lines if line.startswith("evaluation of version")]
    evaluated = [result for result in records(run, "actor_events") if isinstance(result, Evaluated)]
    assert len(told) == len(evaluated) >= 2
    assert "\x1b[?25" not in output and "\r" not in output and "\x1b[1A" not in output
