"""The service says of honest answers what the library says in this process, task by task.

Honest answers are harmless. The scorers of this process are the library's own, as they come.
"""

import asyncio
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS, create_dataset

from pipelinerl.judging.child import judging_service
from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.wire import Judgement
from tests.limits import HANG_S

VERIFIER = "extensions.reasoning_gym.verifier.ReasoningGymVerifier"
TASKS = sorted(DATASETS.keys() - {"composite"})  # that one is made of others
FEW = TASKS[::10]


def honest(entries: list[dict[str, Any]], index: int) -> list[str]:
    """Returns what a model that tries might say: the answer, a part of it, another one, words, nothing."""
    right = str(entries[index]["answer"])
    other = str(entries[index - 1]["answer"])
    return [right, other, f" {right}\n", f"The answer is {right}.", right[:-1], ""][: 5 + index % 2]


def in_process(scorer: Any, entry: dict[str, Any], answer: str) -> float:
    """A scorer that stumbles gives nothing."""
    try:
        return float(scorer.score_answer(answer, entry))
    except Exception:
        return 0.0


async def differences(
    judge: JudgingClient, task: str, problems: int
) -> list[tuple[str, str, float, Judgement]]:
    scorer = create_dataset(task, seed=7, size=problems)
    entries = [scorer[index] for index in range(problems)]
    found = []
    for index, entry in enumerate(entries):
        for answer in honest(entries, index):
            judgement = await judge.judged(task, entry, f"<answer>{answer}</answer>")
            expected = in_process(scorer, entry, answer.strip())
            if judgement.reward != pytest.approx(expected, abs=1e-9):
                found.append((task, answer[:80], expected, judgement))
    return found


def assert_the_same(tasks: list[str], problems: int) -> None:
    specs = {task: {"_target_": VERIFIER, "_reused_": True, "task": task, "options": {}} for task in tasks}
    options = JudgingConfig(workers=2, verdict_s=HANG_S, max_characters=1 << 20, verifiers=specs)

    async def scenario():
        async with judging_service(options) as judge:
            return [each for task in tasks for each in await differences(judge, task, problems)]

    assert asyncio.run(scenario()) == []


def test_some_tasks():
    assert_the_same(FEW, problems=2)


@pytest.mark.engines
@pytest.mark.long
def test_every_task_on_fifty_answers():
    assert len(TASKS) > 100
    assert_the_same(TASKS, problems=9)
