"""The checks of an upload against its task, in their order; the first one that fails decides.

`too_large`, `signature` and `ticket` are made before, by `public_app`, because they do not need the model.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from contracts.commitments import Difference, check_form
from contracts.draws import uniform
from extensions.volunteers.gateway.near_misses import are_too_many, binomial_quantile
from extensions.volunteers.gateway.numerics import EXACT, Numerics
from extensions.volunteers.gateway.prefill import Prefilled
from extensions.volunteers.gateway.queue import Wanted
from extensions.volunteers.messages import Made

Penalty = Literal["none", "strike", "slash"]
FEW_IN = 32  # tokens of a completion, of which one may have a gap above the tolerance
OF_NUMBERS = {"randomness", "activations", "logprobs"}  # a strike of these may be rounding
UNLIKELY = 1e-9  # of an honest completion: to have more gaps above the tolerance than are allowed


@dataclass(frozen=True)
class Refusal:
    """A check that failed, and why, for the volunteer and the operator."""

    check: str
    why: str
    penalty: Penalty


def schema(
    members: Sequence[Wanted], made: Sequence[Made], vocabulary: int, hidden: int | None
) -> Refusal | None:
    """Every member has a completion of possible length and ids, and of possible proofs if they are required.

    vocabulary: rows of the embedding. hidden: elements of the rows of commitments; None: without proofs.
    """
    if len(made) != len(members):
        return Refusal("schema", f"{len(made)} completions, and the task has {len(members)}", "strike")
    for place, (wanted, one) in enumerate(zip(members, made, strict=True)):
        count = len(one.token_ids)
        if not 1 <= count <= wanted.sampling.max_tokens:
            why = f"{count} tokens; 1 to {wanted.sampling.max_tokens} are possible"
        elif len(one.logprobs) != count:
            why = f"{len(one.logprobs)} log-probabilities of {count} tokens"
        elif max(one.token_ids) >= vocabulary:
            why = f"token id {max(one.token_ids)}, and the vocabulary has {vocabulary}"
        elif not all(math.isfinite(each) for each in one.logprobs):
            why = "a log-probability is not finite"
        elif fault := _fault_in_proofs(one, hidden):
            why = fault
        else:
            continue
        return Refusal("schema", f"completion {place}: {why}", "strike")
    return None


def _fault_in_proofs(one: Made, hidden: int | None) -> str | None:
    if hidden is None:
        return None
    try:
        check_form(one.proofs, len(one.token_ids), hidden)
    except ValueError as error:
        return str(error)
    return None


def termination(members: Sequence[Wanted], made: Sequence[Made], ends: Collection[int]) -> Refusal | None:
    """Every completion ends at its first end token, or at its last allowed token. ends: of the model."""
    for place, (wanted, one) in enumerate(zip(members, made, strict=True)):
        stops = {*ends, *wanted.sampling.stop_token_ids}
        *before, last = one.token_ids
        early = next((index for index, each in enumerate(before) if each in stops), None)
        if early is not None:
            why = f"it goes on after its end token at {early}"
        elif (last in stops) != (one.finish_reason == "stop"):
            why = f"finish_reason {one.finish_reason}, and its last token is {last}"
        elif one.finish_reason == "length" and len(one.token_ids) != wanted.sampling.max_tokens:
            why = f"it ends after {len(one.token_ids)} tokens with no end token"
        else:
            continue
        return Refusal("termination", f"completion {place}: {why}", "slash")
    return None


def gaps(wanted: Wanted, found: Prefilled, allowed: Numerics) -> np.ndarray:
    """Returns, for each token, how far its random number lies outside of the token's interval. `[T]`.

    A greedy token has no random number. Its gap is 0 if it is nearly as likely as the best one, else `most`.
    """
    if wanted.sampling.temperature == 0:
        return np.where(found.best - found.logprobs > allowed.greedy, allowed.most, 0.0)
    numbers = np.array([uniform(wanted.key, place) for place in range(len(found.low))])
    outside = np.maximum(found.low - numbers, numbers - found.high)
    return np.maximum(outside, 0.0)


def randomness(place: int, gap: np.ndarray, allowed: Numerics) -> Refusal | None:
    """Each token is the one that the key prescribes, up to the tolerance. place: of the completion.

    Outside float32, a long completion may have as many larger gaps as an honest one, and one token in
    `FEW_IN` at most.
    """
    above = gap > allowed.tolerance
    most = min(binomial_quantile(len(gap), allowed.gap_rate, UNLIKELY), len(gap) // FEW_IN)
    if gap.max() <= allowed.most and above.sum() <= most:
        return None
    first = int(above.argmax())
    why = (
        f"completion {place}: token {first} is not the one that the key prescribes (gap {gap[first]:.2g}, "
        f"allowed {allowed.tolerance:g})"
    )
    may_be_rounding = allowed.tolerance < allowed.most and gap.max() <= allowed.most
    return Refusal("randomness", why, "strike" if may_be_rounding else "slash")


def differences_of(found: Sequence[Prefilled]) -> list[Difference]:
    """Returns how far each chunk's commitments are from the audit's rows."""
    return [each for one in found for each in one.differences]


def activations(found: Sequence[Prefilled], allowed: Numerics) -> Refusal | None:
    """The commitments of a task are to what the run's weights compute, up to rounding.

    The mean of n chunks may be a sqrt(n)-th as far from the honest mean as a single chunk. Twice that, which
    is no rounding, slashes.
    """
    chunks = differences_of(found)
    honest = allowed.activations
    if not chunks or honest is None:
        return None
    exponents = np.array([each.exponents for each in chunks])
    mantissas = np.array([each.mantissa for each in chunks])
    far = max(
        _excess(exponents, honest.exponents, honest.most_exponents),
        _excess(mantissas, honest.mantissa, honest.most_mantissa),
    )
    if far <= 1:
        return None
    why = (
        f"its commitments are not those of the run's weights: {exponents.mean():.2%} of exponents differ, "
        f"{exponents.max():.2%} in one of {len(chunks)} chunks, and mantissas by {mantissas.mean():.2g}, "
        f"{mantissas.max():.2g} in one"
    )
    return Refusal("activations", why, "slash" if far > 2 else "strike")


def _excess(values: np.ndarray, mean: float, most: float) -> float:
    """Returns how many times the values, or their mean, are as large as honest ones may be."""
    allowed = mean + (most - mean) / math.sqrt(len(values))
    return max(float(values.max()) / most, float(values.mean()) / allowed)


def logprobs(place: int, one: Made, found: Prefilled, allowed: Numerics) -> Refusal | None:
    """The log-probabilities are those of the weights, on the mean of a completion."""
    apart = float(np.abs(np.array(one.logprobs) - found.logprobs).mean())
    if apart <= allowed.logprob:
        return None
    why = f"completion {place}: its log-probabilities are {apart:.2g} nats off, allowed {allowed.logprob:g}"
    return Refusal("logprobs", why, "strike")


def near_misses(tokens: int, missed: int, allowed: Numerics) -> Refusal | None:
    """Over its life a volunteer needs the tolerance no more often than an honest one."""
    if not are_too_many(tokens, missed, allowed.near_rate):
        return None
    why = f"{missed} of {tokens} tokens passed only because of the tolerance; honest: {allowed.near_rate:g}"
    return Refusal("near_misses", why, "slash")


def count_near(gap: np.ndarray) -> int:
    """Returns how many tokens are near misses."""
    return int((gap > EXACT).sum())
