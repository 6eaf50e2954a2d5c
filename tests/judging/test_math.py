"""Mathematics through the judging service: judgements that a person expects, and answers that attack it.

math_answers.jsonl: a reference (`gold`), a model's answer (or how to `repeat` a text to make it), and what a
person says of it. `undecidable`: math-verify sees it otherwise, as the `note` says. Hostile answers may also
end undecided.
"""

import asyncio

import pytest

from benchmarks.judge import Pair, judged, options, pairs
from pipelinerl.judging.child import judging_service
from tests.rotation import eighth

WORKERS = 2
HOSTILE = [pair for pair in pairs() if pair.kind == "hostile" and pair.decidable]
ORDINARY = [pair for pair in pairs() if pair.kind != "hostile" and pair.decidable]


def test_some_of_the_decidable_judgements_are_the_expected_ones():
    assert_as_expected(eighth(ORDINARY)[::3])


@pytest.mark.engines
def test_every_decidable_judgement_is_the_expected_one():
    assert len(ORDINARY) >= 300
    assert_as_expected(ORDINARY)


def assert_as_expected(chosen: list[Pair]) -> None:
    async def scenario():
        async with judging_service(options(WORKERS, verdict_s=10.0)) as judge:
            return await judged(judge, chosen, WORKERS)

    results = asyncio.run(scenario())
    assert [(r.pair, r.outcome) for r in results if r.outcome != r.pair.expected] == []


@pytest.mark.engines
def test_all_hostile_answers_in_eight_runs():
    assert len(HOSTILE) > 150
    assert_withstood(eighth(HOSTILE))


def assert_withstood(chosen: list[Pair]) -> None:
    async def scenario():
        async with judging_service(options(WORKERS, verdict_s=2.0)) as judge:
            results = await judged(judge, chosen, WORKERS)
            return results, await judge.judged("math", "2", r"\boxed{\frac{4}{2}}")

    results, afterwards = asyncio.run(scenario())
    assert [r for r in results if r.outcome not in (r.pair.expected, "undecided")] == []
    assert any(r.outcome == "undecided" and len(r.pair.answer) < 100 for r in results)  # ran out of time
    assert afterwards.outcome == "right"
