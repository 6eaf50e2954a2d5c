"""Scores of one request are by one version, whatever updates come meanwhile."""

import itertools

import pytest

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ScoreRequest
from inference_adapters.scoring import TRIES, Scores, score_by_one_version

pytestmark = pytest.mark.asyncio

TWO = ScoreRequest(sequences=[[1, 2], [3, 4]], temperature=0.5)


class Engine:
    """Scores each sequence by the number of updates so far. `during`: at which scores an update comes."""

    def __init__(self, during: range):
        self.during = during
        self.calls = itertools.count()
        self.updates = 0

    async def score(self, token_ids: list[int], temperature: float, top: int) -> Scores:
        scores = Scores([self.updates * temperature], self.updates)
        self.updates += next(self.calls) in self.during
        return scores


async def answer(engine):
    return await score_by_one_version(TWO, engine.score, lambda: engine.updates)


async def test_all_are_scored_again_if_an_update_comes_meanwhile():
    answered = await answer(Engine(during=range(1)))
    assert (answered.logprobs, answered.version) == ([[0.5], [0.5]], 1)


async def test_too_many_updates_are_said():
    message = "sequences: 4 times, an update came while 2 were scored"
    with pytest.raises(ContractError, match=message) as failed:
        await answer(Engine(during=range(0, 2 * TRIES, 2)))
    assert failed.value.code is ErrorCode.OVERLOADED


async def test_all_are_scored_again_if_one_was_aborted():
    class Aborting(Engine):
        async def score(self, token_ids, temperature, top):
            return None if next(self.calls) == 0 else await super().score(token_ids, temperature, top)

    answered = await answer(Aborting(during=range(0)))
    assert (answered.logprobs, answered.version) == ([[0.0], [0.0]], 0)


async def test_the_error_of_one_is_that_of_all():
    class Failing(Engine):
        async def score(self, token_ids, temperature, top):
            raise ContractError(ErrorCode.WEIGHTS_LOST, "lost")

    with pytest.raises(ContractError, match="lost"):
        await answer(Failing(during=range(0)))
