"""What a model writes runs nowhere, and leaves nothing."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from extensions.reasoning_gym.domain import ReasoningGym
from pipelinerl.domains.judges import judge_of
from pipelinerl.domains.mixture import Mixture
from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.options import JudgingConfig
from tests.extensions.reasoning_gym.hostile_answers import CODE, ENDLESS, LARGE, TASKS, THE_SIX
from tests.judging.honest import judged_at_last

SHORT_S = 0.5  # endless answers exceed it
SLEEPER = "987654"


class Target:
    """What the answers attack: this process, a directory, a port."""

    def __init__(self, directory: Path, listening: socket.socket):
        self.directory = directory
        self.listening = listening
        self.marker = directory / "marker"
        self.victim = directory / "victim"
        self.victim.write_text("still here")

    def aimed(self, answer: str) -> str:
        port = self.listening.getsockname()[1]
        return answer.format(marker=self.marker, victim=self.victim, port=port, actor=os.getpid())

    def assert_untouched(self) -> None:
        assert [path.name for path in self.directory.iterdir()] == ["victim"]
        assert self.victim.read_text() == "still here"
        with pytest.raises(BlockingIOError):
            self.listening.accept()
        assert [p for p in psutil.process_iter(["cmdline"]) if SLEEPER in (p.info["cmdline"] or [])] == []


@pytest.fixture
def target(tmp_path, monkeypatch) -> Iterator[Target]:
    monkeypatch.setenv("PIPELINERL_TOKEN", "a secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield Target(tmp_path, listening)


def judge_all(answers: list[tuple[str, str]]) -> list:
    """Judges (task, answer) pairs by one service, and an honest answer of each task after them."""
    domain = Mixture({task: ReasoningGym(task) for task in dict(answers)})
    entries = {task: ReasoningGym(task).train_problem(0).data for task in dict(answers)}
    options = JudgingConfig(workers=2, verdict_s=SHORT_S, memory_bytes=1 << 30)

    async def one(judge: JudgingClient, task: str, answer: str):
        return task, answer[:80], await judge.judged(f"{task}/{task}", entries[task], answer)

    async def scenario():
        async with judge_of(domain, options) as judge:
            found = await asyncio.gather(*(one(judge, *answer) for answer in answers))
            answered = [task for task in entries if entries[task]["answer"]]  # by the library
            assert len(answered) >= len(entries) - 3
            for task in answered:
                text = f"<answer>{entries[task]['answer']}</answer>"
                honest = await judged_at_last(judge, f"{task}/{task}", entries[task], text)
                assert honest.success, (task, honest)
            return found

    return asyncio.run(scenario())


def assert_withstood(answers: list[tuple[str, str]], target: Target) -> None:
    judged = judge_all([(task, f"<answer>{target.aimed(text)}</answer>") for task, text in answers])
    assert len(judged) == len(answers)
    assert [each for each in judged if each[2].success or each[2].reward > 0.1] == []
    target.assert_untouched()


def test_code_in_an_answer_to_the_six_tasks_runs_nowhere(target):
    assert_withstood([(task, text) for task in THE_SIX for text in CODE.values()], target)


@pytest.mark.engines
def test_an_endless_or_huge_answer_costs_itself(target):
    answers = [("countdown", ENDLESS["power"]), ("coin_flip", ENDLESS["fraction"])]
    answers += [
        (task, LARGE[name]) for task in ("n_queens", "jugs") for name in LARGE if "{" not in LARGE[name]
    ]
    assert_withstood(answers, target)


@pytest.mark.engines
def test_every_answer_to_every_task_that_evaluates_any(target):
    texts = [*CODE.values(), *(text.replace("{", "{{").replace("}", "}}") for text in LARGE.values())]
    answers = [(task, text) for task in TASKS for text in texts]
    answers += [(task, text) for task in TASKS for text in ENDLESS.values()]
    assert len(CODE) >= 40 and len(answers) > 1000
    assert_withstood(answers, target)
