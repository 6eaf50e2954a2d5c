"""Mathematics through the judging service: judgements that a person expects, and answers that attack it.

math_answers.jsonl: a reference (`gold`), a model's answer (or how to `repeat` a text to make it), and what a
person says of it. `undecidable`: the verifier sees it otherwise, as the `note` says. Hostile answers may also
end undecided. graded_pairs.jsonl: pairs of eleven kinds, tricks among them, with the verdicts of a person and
of math-verify alone.
"""

import asyncio
import json
import pickle
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.judge import Pair, judged, options, pairs
from pipelinerl.judging.child import judging_service
from pipelinerl.judging.verifiers import build_judge
from tests.judging.honest import judged_at_last
from tests.limits import HANG_S

GRADED = Path(__file__).with_name("graded_pairs.jsonl")
WORKERS = 2
SHORT_S = 2.0  # hostile answers exceed it
HOSTILE = [pair for pair in pairs() if pair.kind == "hostile" and pair.decidable]
ORDINARY = [pair for pair in pairs() if pair.kind != "hostile" and pair.decidable]


def test_every_decidable_judgement_is_the_expected_one():
    """In this process, for these answers are harmless."""
    assert len(ORDINARY) >= 300
    judge = build_judge(options(WORKERS, HANG_S).verifiers, max_characters=2000)
    found = [(pair, judge("math", pickle.dumps(pair.gold), pair.answer).word) for pair in ORDINARY]
    assert [(pair, word) for pair, word in found if word != pair.expected] == []


def test_the_graded_pairs_have_no_false_positive_and_no_false_negative():
    graded = [json.loads(line) for line in GRADED.read_text().splitlines()]
    of_each = Counter((pair["kind"], pair["right"]) for pair in graded)
    assert len(of_each) == 22 and min(of_each.values()) >= 10
    judge = build_judge(options(WORKERS, HANG_S).verifiers, max_characters=2000)
    words = [judge("math", pickle.dumps(pair["gold"]), pair["text"]).word for pair in graded]
    judged = list(zip(graded, words, strict=True))
    assert [pair for pair, word in judged if word == "right" != pair["right"]] == []
    assert [pair for pair, word in judged if word != "right" == pair["right"]] == []


@pytest.mark.engines
def test_some_hostile_answers():
    assert_withstood(HOSTILE[::8])


@pytest.mark.long
def test_all_hostile_answers():
    assert len(HOSTILE) > 150
    assert_withstood(HOSTILE)


def assert_withstood(chosen: list[Pair]) -> None:
    async def scenario():
        async with judging_service(options(WORKERS, SHORT_S)) as judge:
            results = await judged(judge, chosen, WORKERS)
            return results, await judged_at_last(judge, "math", "2", r"\boxed{\frac{4}{2}}")

    results, afterwards = asyncio.run(scenario())
    assert [r for r in results if r.outcome not in (r.pair.expected, "undecided")] == []
    assert any(r.outcome == "undecided" and len(r.pair.answer) < 100 for r in results)  # ran out of time
    assert afterwards.outcome == "right"
