"""An attempt that waits for its judgement: its place, its time, and what becomes of a judge that fails."""

import asyncio
from contextlib import contextmanager, nullcontext

import pytest

from pipelinerl.clients.attempt_clock import AttemptClock, AttemptPresence
from pipelinerl.clients.llm_client import immediately
from pipelinerl.domains.base import Problem, Verified
from pipelinerl.judging.client import JudgeError
from pipelinerl.judging.wire import Judgement
from pipelinerl.rollouts.slot_queue import SlotQueue
from tests.limits import HANG_S
from tests.rollouts.test_runner import GOOD, attempt
from tests.virtual_time import in_virtual_time, pass_time


class Judged(Verified):
    """A domain whose answers get these judgements, one after the other."""

    name = "judged"
    train_size = 1
    heldout_size = 1

    def __init__(self, *judgements: Judgement | Exception, after_s: float = 0.0):
        super().__init__({"_target_": "nothing"})
        self._judge = Judge(list(judgements), after_s)

    def train_problem(self, index: int) -> Problem:
        return Problem("p", [{"role": "user", "content": "x"}], expected="four")

    heldout_problem = train_problem

    async def rollout(self, client, problem):
        client.judge = self._judge
        return await super().rollout(client, problem)


class Judge:
    def __init__(self, judgements: list[Judgement | Exception], after_s: float):
        self._judgements = judgements
        self._after_s = after_s

    async def judged(self, verifier: str, task: object, text: str) -> Judgement:
        await asyncio.sleep(self._after_s)
        judgement = self._judgements.pop(0)
        if isinstance(judgement, Exception):
            raise judgement
        return judgement


def test_a_judgement_becomes_the_reward_and_its_components():
    judgement = Judgement(0.7, True, "right", {"right": 0.5, "brief": 0.2}, {"words": 3.0}, reason="read: x")
    rollout = attempt([GOOD], Judged(judgement))
    assert (rollout.expected, rollout.reason) == ("four", "right; read: x")
    assert (rollout.reward, rollout.reward_components) == (0.7, judgement.components)
    assert rollout.metrics["words"] == 3.0 and rollout.success == 1.0


def test_what_is_undecided_is_counted_by_its_reason():
    rollout = attempt([GOOD], Judged(Judgement(0.0, False, "undecided:time")))
    assert rollout.status == "ok" and rollout.metrics["judged_undecided_time"] == 1.0


def test_a_judge_that_fails_ends_the_attempt_and_nothing_is_sampled_again():
    rollout = attempt([GOOD], Judged(JudgeError("503")), retries=5)  # a second request would find no answer
    assert rollout.status == "failed:judge" and rollout.metrics["retries"] == 0


def test_time_stands_still_while_a_judgement_is_waited_for():
    judgement = Judgement(1.0, True, "right")
    assert attempt([GOOD], Judged(judgement, after_s=0.5), timeout_s=0.4).status == "ok"


def test_the_place_is_free_until_the_last_of_several_judgements_is_there():
    in_virtual_time(place_while_judgements_are_waited_for())


async def place_while_judgements_are_waited_for() -> None:
    held = [True]

    @contextmanager
    def leave():
        held.append(False)
        yield
        held.append(True)

    async with asyncio.timeout(HANG_S) as timeout:
        pause = AttemptPresence(AttemptClock(timeout), leave, nullcontext, immediately)
        with pause.away():
            with pause.away():
                assert held == [True, False] and timeout.when() is None
            pass_time(2 * HANG_S)
            assert held == [True, False]
        assert held == [True, False, True]
        assert timeout.when() == asyncio.get_running_loop().time() + HANG_S


@pytest.mark.asyncio
async def test_a_judgement_that_outlasts_its_attempt_ends_quietly():
    freed = []
    slots = SlotQueue(lambda: freed.append(True))

    async def judged() -> None:
        with pause.away():
            await goes_on.wait()

    goes_on = asyncio.Event()
    async with asyncio.timeout(HANG_S) as timeout:
        pause = AttemptPresence(
            AttemptClock(timeout), slots.leave_slot, slots.slot_while_away, slots.wait_for_slot
        )
        waiting = asyncio.create_task(judged())
        await asyncio.sleep(0)
        assert slots.away == len(freed) == 1
    goes_on.set()
    await waiting
    assert slots.away == 0


def test_a_request_of_an_attempt_that_is_away_takes_a_slot_and_its_time_runs():
    in_virtual_time(requests_while_away())


async def requests_while_away() -> None:
    slots = SlotQueue(lambda: None)
    in_use = lambda: 1 - slots.between_segments - slots.away  # noqa: E731 - of one attempt
    async with asyncio.timeout(HANG_S) as timeout:
        slot = AttemptPresence(
            AttemptClock(timeout), slots.leave_slot, slots.slot_while_away, slots.wait_for_slot
        )
        goes_on = asyncio.Event()

        async def request() -> None:
            async with slot.requesting():
                await goes_on.wait()

        with slot.away():
            requests = [asyncio.create_task(request()) for _ in range(2)]
            await asyncio.sleep(0)
            assert in_use() == 0 and timeout.when() is None  # both wait
            for number in (1, 2):
                slots.resume_one()
                await asyncio.sleep(0)
                assert in_use() == number and timeout.when() is not None
            goes_on.set()
            await asyncio.gather(*requests)
            assert in_use() == 0 and timeout.when() is None
        assert slots.away == 0 and timeout.when() is not None
        resumed = asyncio.create_task(request())  # after it was away, the attempt waits for a slot again
        await asyncio.sleep(0)
        assert slots.between_segments == 1 and slots.resume_one()
        await resumed
