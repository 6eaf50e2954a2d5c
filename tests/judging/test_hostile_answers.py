"""What a model writes runs nowhere, and leaves nothing."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.components import judge_of
from pipelinerl.domains.mixture import Mixture
from pipelinerl.domains.reasoning_gym import ReasoningGym
from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.options import JudgingConfig
from tests.judging.hostile_answers import CODE, THE_SIX
from tests.limits import HANG_S


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
    options = JudgingConfig(workers=2, verdict_s=HANG_S, memory_bytes=1 << 30)

    async def one(judge: JudgingClient, task: str, answer: str):
        return task, answer[:80], await judge.judged(f"{task}/{task}", entries[task], answer)

    async def scenario():
        async with judge_of(domain, options) as judge:
            found = await asyncio.gather(*(one(judge, *answer) for answer in answers))
            for task, entry in entries.items():
                text = f"<answer>{entry['answer']}</answer>"
                honest = await judge.judged(f"{task}/{task}", entry, text)
                assert honest.success, (task, honest)
            return found

    return asyncio.run(scenario())


def test_code_in_an_answer_to_the_six_tasks_runs_nowhere(target):
    answers = [(task, f"<answer>{target.aimed(text)}</answer>") for task in THE_SIX for text in CODE.values()]
    judged = judge_all(answers)
    assert len(judged) == len(answers)
    assert [each for each in judged if each[2].success or each[2].reward > 0.1] == []
    target.assert_untouched()
