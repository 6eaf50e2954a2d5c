"""Makes one rollout: an attempt at a problem, with its retries, as a `Rollout` record.

Every failure becomes a failed rollout with a named reason. Only cancellation and GaveUpError are raised.
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from contracts.errors import ErrorCode
from contracts.records import Completion, Failure, Rollout
from contracts.support.messages import shown
from contracts.token_fields import TokenField, TokenFieldError, check_token_fields
from pipelinerl.clients.attempt_clock import AttemptClock, AttemptPresence, ReleaseSlot, SlotWhileAway
from pipelinerl.clients.faults import (
    InvalidResponseError,
    RequestRefusedError,
    ServerFailedError,
    ServerUnavailableError,
)
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.config import RolloutConfig
from pipelinerl.domains.base import Attempt, AttemptFailedError, Domain, Problem
from pipelinerl.errors import GaveUpError
from pipelinerl.errors.first_failures import FirstFailures
from pipelinerl.errors.part_faults import describe_fault
from pipelinerl.judging.client import JudgeError

log = logging.getLogger(__name__)

TO_JUDGE_S = 5.0  # part of an attempt's time that is reserved for its domain after an answer is cut short
TO_JUDGE_SHARE = 0.1  # share of the time that is reserved instead, if that is less
TOO_LONG = (ErrorCode.CONTEXT_LENGTH.code, ErrorCode.TOO_LARGE.code)
OF_A_SERVER = RequestRefusedError | ServerUnavailableError | ServerFailedError
# ConnectionError and TimeoutError: a service that the domain connects to may still be starting.
NOT_OF_THE_DOMAIN = OF_A_SERVER | ConnectionError | TimeoutError | InvalidResponseError | JudgeError
NOT_OF_THE_DOMAIN |= AttemptFailedError  # which the domain knows


class InvalidRewardError(Exception):
    """A reward of the domain is not finite, or there are more turn rewards than completions."""


@dataclass(frozen=True)
class RolloutSpec:
    """The identity of a rollout in a group, or of an attempt at a held-out problem.

    group_id: id of the group, or index of the held-out problem.
    """

    group_id: int
    rollout_id: str
    seed_name: str  # input of the seed; the same for the same attempt in every run
    draw: int = -1  # draw of the group


@dataclass(frozen=True)
class RolloutRunner:
    """A callable that makes attempts at problems.

    run: id of the run in its weights; "" before the first publication.
    token_fields: declared token fields, which every attempt must have. None = record no fields, because the
        rollouts are not trained on.
    release_slot: context in which another attempt may use this one's request slot, while it is away.
    slot_while_away: context of a request in such a context.
    failures: counts failures, and raises GaveUpError in a run in which no first attempt succeeds.
    """

    run: str
    domain: Domain
    client: LLMClient
    policy: RolloutConfig
    token_fields: Mapping[str, TokenField] | None = None
    release_slot: ReleaseSlot = nullcontext
    slot_while_away: SlotWhileAway = nullcontext
    failures: FirstFailures | None = None

    async def __call__(self, problem: Problem, spec: RolloutSpec) -> Rollout:
        started_at = time.time()
        failures_not_of_servers = 0
        failed_on = None  # URL of a server
        error: Exception | None = None
        for retry in range(self.policy.retries + 1):
            # After a server's failure, the attempt is repeated with the same seed.
            seed_name = f"{spec.seed_name} {failures_not_of_servers}"
            client = self.client.of_attempt(seed_name, failed_on, problem.template)
            try:
                attempt = await self._try_once(client, problem)
                figures = {"retries": retry, "out_of_time": client.attempt.out_of_time}
                if problem.tools or client.attempt.malformed_calls:
                    figures["malformed_calls"] = client.attempt.malformed_calls
                rollout = self._record(problem, spec, started_at, attempt, figures)
                if self.failures:
                    self.failures.succeeded()
                return rollout
            except GaveUpError:
                raise
            except Exception as failure:
                error = client.attempt.cause_of(failure)
                failed_on = client.attempt.avoid
                _, reason = failure_of(error)
                failures_not_of_servers += not isinstance(error, OF_A_SERVER)
                log.warning("rollout %s, try %d failed: %s: %s", spec.rollout_id, retry + 1, reason, error)
                if isinstance(error, JudgeError):  # the client has retried; a new sample has the same judge
                    break
        if self.failures and not isinstance(error, NOT_OF_THE_DOMAIN):
            self.failures.failed(describe_fault(self.domain, "an Attempt", error, "rollout", "domain"))
        kind, reason = failure_of(error)
        why = f"{reason}: {error}" if str(error) not in ("", reason) else reason
        failed = {"status": f"failed:{reason}", "failure": kind, "metrics": {"retries": float(retry)}}
        return self._rollout(problem, spec, started_at, reason=shown(why), **failed)

    async def _try_once(self, client: LLMClient, problem: Problem) -> Attempt:
        """Runs the domain under a time limit, which judgements and times without a server pause."""
        to_judge_s = min(TO_JUDGE_S, TO_JUDGE_SHARE * self.policy.timeout_s)
        async with asyncio.timeout(self.policy.timeout_s) as timeout:
            clock = AttemptClock(timeout)
            slot = AttemptPresence(clock, self.release_slot, self.slot_while_away, client.acquire_slot)
            client = replace(
                client,
                away=slot.away,
                requesting=slot.requesting,
                soft_deadline=partial(clock.ending_early, to_judge_s),
            )
            with client.pool.timing(clock):
                return await self.domain.rollout(client, problem)

    def _rollout(self, problem: Problem, spec: RolloutSpec, started_at: float, **outcome: object) -> Rollout:
        """Returns the record of a rollout that ends now. outcome: further fields."""
        return Rollout(
            run=self.run,
            rollout_id=spec.rollout_id,
            group_id=spec.group_id,
            problem_id=problem.problem_id,
            domain=problem.domain or self.domain.name,
            draw=spec.draw,
            expected=None if problem.expected is None else shown(str(problem.expected)),
            started_at=started_at,
            finished_at=time.time(),
            **outcome,
        )

    def _record(
        self,
        problem: Problem,
        spec: RolloutSpec,
        started_at: float,
        attempt: Attempt,
        figures: Mapping[str, float],
    ) -> Rollout:
        if not math.isfinite(attempt.reward):
            raise InvalidRewardError(f"{problem.problem_id} was given the reward {attempt.reward}")
        turns = attempt.turn_rewards
        if len(turns) > len(attempt.completions) or not all(map(math.isfinite, turns)):
            raise InvalidRewardError(
                f"{problem.problem_id}: {turns} for {len(attempt.completions)} completions"
            )
        reasons = [completion.finish_reason for completion in attempt.completions]
        is_truncated = reasons[-1:] == ["length"] if attempt.is_truncated is None else attempt.is_truncated
        return self._rollout(
            problem,
            spec,
            started_at,
            completions=[self._with_token_fields(completion) for completion in attempt.completions],
            reward=float(attempt.reward),
            reward_components=attempt.reward_components,
            turn_rewards=attempt.turn_rewards,
            success=float(attempt.success),
            reason=shown(str(attempt.reason)),
            metrics={
                **attempt.metrics,
                "repetition": float("repetition" in reasons),
                **{name: float(value) for name, value in figures.items()},
            },
            status="truncated" if is_truncated else "ok",
        )

    def _with_token_fields(self, completion: Completion) -> Completion:
        if self.token_fields is None:
            return msgspec.structs.replace(completion, token_fields={})
        check_token_fields(self.token_fields, completion.token_fields, len(completion.token_ids))
        return completion


def failure_of(error: Exception) -> tuple[Failure, str]:
    """Returns the kind of a failure, and its name in the rollout's status."""
    match error:
        case TimeoutError():
            return Failure.TIMEOUT, "timeout"
        case RequestRefusedError() if str(error) in TOO_LONG:
            return Failure.TOO_LONG, f"server_{error}"
        case RequestRefusedError() | ServerUnavailableError() | ServerFailedError():
            return Failure.SERVER, f"server_{error}"
        case InvalidResponseError():
            return Failure.BAD_ANSWER, "bad_answer"
        case InvalidRewardError():
            return Failure.DOMAIN, "bad_reward"
        case AttemptFailedError():
            return Failure.DOMAIN, error.name
        case JudgeError():
            return Failure.JUDGE, "judge"
        case TokenFieldError():
            return Failure.DOMAIN, "bad_token_fields"
        case _:
            return Failure.DOMAIN, type(error).__name__
