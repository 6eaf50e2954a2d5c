"""Calls user components and checks their results: terms of the loss, components that form a step, a sampler.

Each raises WrongError for a result that the run could not use. Exceptions of the component propagate.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace

import msgspec
import numpy as np
import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.advantages import UnfitRewardsError
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Problem
from pipelinerl.errors.part_faults import Happened
from pipelinerl.launcher.checking.trial.sample_inputs import (
    PROBLEM,
    answers_of,
    batch_of,
    group_of,
    halves_of,
    scores_of,
)
from pipelinerl.launcher.checking.trial.watch import WrongError, expect
from pipelinerl.normalisations import GroupTokens
from pipelinerl.samplers.base import Sampler
from pipelinerl.training.step_statistics import REPORTED

MOST_DRAWS = 1000
Called = Callable[..., object]


def call_objective(objective: Called, config: RunConfig, answers: int, has_values: bool) -> None:
    """Checks loss, gradient and sums, in the first PPO epoch and in a later one."""
    for batch in _batches(config, answers):
        scores, sources = scores_of(batch, has_values)
        loss, sums = _loss_of(_called(objective, scores, batch))
        _check_loss(loss)
        expect(loss.requires_grad, OF_SCORES, Happened("its loss has no gradient: something detaches it"))
        loss.backward()
        gradients = [source.grad for source in sources if source.grad is not None]
        expect(gradients, OF_SCORES, Happened("the gradient of its loss reaches none of them"))
        is_finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        came = Happened("the gradient of its loss is NaN or infinite")
        expect(is_finite, "a loss with a finite gradient", came)
        _check_sums(sums)


def check_gradient(objective: Called, config: RunConfig, answers: int, has_values: bool) -> None:
    """Checks that the gradient is not 0, and that its sign is not reversed."""
    batch = batch_of(config, answers)
    scores, sources = scores_of(batch, has_values)
    loss, _ = objective(scores, batch)
    loss.backward()
    has_one = any(source.grad is not None and bool(source.grad.any()) for source in sources)
    expect(has_one, "a gradient other than 0", Happened("that of rollouts right and wrong is 0"))
    of_logprobs = sources[0].grad
    if of_logprobs is not None:
        lowers = of_logprobs * batch.advantages  # above 0 if descent lowers right or raises wrong tokens
        is_reversed = bool((lowers >= 0).all()) and bool((lowers > 0).any())
        came = Happened("it lowers all of them, and raises those of wrong ones: its sign is reversed")
        expect(not is_reversed, "a loss that raises the log-probabilities of right rollouts", came)


def cut_loss(objective: Called, config: RunConfig, answers: int, has_values: bool) -> None:
    """Checks that the loss is the sum of the losses of a micro-batch's halves, unless it is random."""
    batch = batch_of(config, answers)
    scores, _ = scores_of(batch, has_values)

    def loss_of(batch: PackedBatch, scores: TokenScores) -> float:
        loss, _ = objective(scores, batch)
        return float(loss.detach())

    whole = loss_of(batch, scores)
    halves = sum(loss_of(*half) for half in halves_of(config, answers, scores))
    is_same = math.isclose(whole, halves, rel_tol=1e-3, abs_tol=1e-6) or loss_of(batch, scores) != whole
    came = f"that of {batch.num_rollouts} rollouts is {whole:.3g}, and that of their halves {halves:.3g}"
    expect(is_same, "a loss that is a sum of terms times batch.loss_weights", Happened(came))


OF_SCORES = "a loss that is computed from scores.logprobs, scores.entropy or scores.values"


def call_regulariser(regulariser: Called, config: RunConfig, answers: int, has_values: bool) -> None:
    """Checks the term and the sums. The term may have no gradient."""
    for batch in _batches(config, answers):
        scores, _ = scores_of(batch, has_values)
        loss, sums = _loss_of(_called(regulariser, scores, batch))
        _check_loss(loss)
        _check_sums(sums)


def _batches(config: RunConfig, answers: int) -> list[PackedBatch]:
    first = batch_of(config, answers)
    if config.epochs == 1:
        return [first]
    start = torch.linspace(0.1, 0.5, first.num_tokens)
    return [first, replace(first, proximal_logprobs=first.behaviour_logprobs.clone(), start_values=start)]


def _called(term: Called, scores: TokenScores, batch: PackedBatch) -> object:
    """Calls a term of the loss, and checks that it does not modify the batch, which later terms read."""
    before = deepcopy(batch)
    result = term(scores, batch)
    changed = [f.name for f in fields(batch) if not _is_same(getattr(batch, f.name), getattr(before, f.name))]
    came = Happened(f"it changes batch.{', batch.'.join(changed)} in place: work on a clone()")
    expect(not changed, "a batch that stays as it was", came)
    return result


def _is_same(value: object, before: object) -> bool:
    if isinstance(value, torch.Tensor):
        return isinstance(before, torch.Tensor) and torch.equal(value, before)
    if isinstance(value, dict) and isinstance(before, dict):
        return value.keys() == before.keys() and all(_is_same(value[name], before[name]) for name in value)
    return value == before


def _loss_of(came: object) -> tuple[object, object]:
    expect(isinstance(came, tuple | list) and len(came) == 2, "(loss, sums)", came)
    return came[0], came[1]


def _check_loss(loss: object) -> None:
    is_scalar = isinstance(loss, torch.Tensor) and loss.shape == () and loss.is_floating_point()
    expect(is_scalar, "a scalar loss: a tensor of floats of shape []", loss)
    expect(torch.isfinite(loss), "a finite loss", loss)


def _check_sums(sums: object) -> None:
    expect(isinstance(sums, dict), "sums by name: a dict of scalar tensors", sums)
    for name, value in sums.items():
        expect(isinstance(name, str), "names of sums that are strings", name)
        is_scalar = isinstance(value, torch.Tensor) and value.shape == () and not value.is_complex()
        expect(is_scalar, f"a scalar tensor for the sum {name}", value)
    taken = ", ".join(sums.keys() & REPORTED)
    expect(not taken, "sums of other names than those that every step reports", Happened(f"it names {taken}"))


def call_advantage(advantage: Called, config: RunConfig) -> None:
    """Checks for one finite number for each rollout; `over_step` gives one for each turn of a step."""
    size = config.group_size
    try:
        given = advantage(_rewards_for(advantage, size))
    except UnfitRewardsError:  # it may be defined only for other rewards
        return
    of_group = "one advantage for each rollout: finite numbers of shape [{}]"
    advantages = _numbers(given, (size,), of_group.format(size))
    if over_step := getattr(advantage, "over_step", None):
        final = over_step(np.tile(advantages, 2).astype(np.float32))
        expected = f"one advantage for each turn of a step: an array of numbers of shape [{2 * size}]"
        expect(isinstance(final, np.ndarray), expected, final, "over_step")
        _numbers(final, (2 * size,), expected, "over_step")


def check_advantages(advantage: Called, config: RunConfig) -> None:
    """Checks that right rollouts have higher advantages than wrong ones."""
    size = config.group_size
    try:
        given = np.asarray(advantage(_rewards_for(advantage, size)))
    except UnfitRewardsError:
        return
    came = Happened("those of rollouts right and wrong are all 0")
    expect(given.any(), "advantages other than 0", came)
    if size > 1:
        came = Happened("those of wrong ones are higher: its sign is reversed")
        expect(given[::2].max() >= given[1::2].min(), "higher advantages for right rollouts", came)


def _rewards_for(advantage: Called, size: int) -> np.ndarray:
    """Returns rewards [size], or [size, components] if there are any. Every second rollout is right."""
    rewards = (np.arange(size) % 2 == 0).astype(np.float32)
    names = getattr(advantage, "components", None)
    return np.repeat(rewards[:, None], len([*names]), axis=1) if names else rewards


def call_filter(group_filter: Called, config: RunConfig, problem: Problem = PROBLEM) -> None:
    """Checks for one bool for each rollout."""
    group = group_of(config, config.group_size, problem, answers=answers_of(config))
    advantages = [np.full(len(r.completions), r.reward - 0.5, dtype=np.float32) for r in group]
    before = deepcopy(advantages)
    keeps = group_filter(group, advantages)
    is_same = all(map(np.array_equal, advantages, before))
    expect(is_same, "advantages that stay as they were", Happened("it changes them in place: work on a copy"))
    expected = f"one bool for each rollout, whether it is kept: shape [{len(group)}]"
    array = _array(keeps)
    expect(array is not None and array.dtype == bool and array.shape == (len(group),), expected, keeps)


def call_reward(term: Called, config: RunConfig, problem: Problem = PROBLEM) -> None:
    size = config.group_size
    expected = f"one addition to the reward of each rollout: finite numbers of shape [{size}]"
    _numbers(term(group_of(config, size, problem), 0), (size,), expected)


def call_normalisation(normalisation: Called, config: RunConfig) -> None:
    """Checks for one finite weight for each rollout of each group."""
    tokens = 3 + np.arange(config.group_size) % 3
    groups = [GroupTokens(config.group_size, tokens)] * max(1, config.batch_size // config.group_size)
    given = normalisation(groups, config.batch_size)
    expected = f"an array of weights for each of {len(groups)} groups"
    expect(isinstance(given, list | tuple) and len(given) == len(groups), expected, given)
    for group, weights in zip(groups, given, strict=True):
        size = len(group.tokens)
        _numbers(weights, (size,), f"one finite weight for each rollout of a group: shape [{size}]")


def _numbers(given: object, shape: tuple[int, ...], expected: str, method: str = "__call__") -> np.ndarray:
    array = _array(given)
    expect(array is not None and array.shape == shape and array.dtype.kind in "fiu", expected, given, method)
    wrong = array[~np.isfinite(array)]
    expect(not len(wrong), expected, Happened(f"one of them is {wrong[0]}" if len(wrong) else ""), method)
    return array


def _array(given: object) -> np.ndarray | None:
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError):
        return None


def call_sampler(sampler: Sampler, other: Sampler, config: RunConfig, size: int) -> None:
    """Checks the draws from `size` problems in a short run, and that `other` can load the saved state."""
    wanted = config.max_steps * (config.batch_size // config.group_size)
    expected = f"the index of a training problem: an int from 0 to {size - 1}"
    for draw in range(min(wanted, size + 1, MOST_DRAWS)):
        problem = sampler.next(0)
        is_index = isinstance(problem, int) and not isinstance(problem, bool)
        expect(is_index and 0 <= problem < size, expected, problem, "next")
        sampler.observe(problem, draw % 3 / 2)
    state = sampler.state_dict()
    expected = "a state_dict that MessagePack can store, with string keys"
    expect(isinstance(state, dict), expected, state, "state_dict")
    try:
        saved = msgspec.msgpack.encode(state)
    except (TypeError, ValueError, OverflowError) as error:
        raise WrongError(expected, error, "state_dict") from error
    other.load_state_dict(msgspec.msgpack.decode(saved))
