"""What a model writes runs nowhere, leaves nothing, and does not hold up those who asked."""

import asyncio
import gc
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipelinerl.components import judge_of
from pipelinerl.domains.mixture import Mixture
from pipelinerl.domains.reasoning_gym import ReasoningGym
from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.options import JudgingConfig
from tests.judging.hostile_answers import CODE, ENDLESS, LARGE, TASKS, THE_SIX

MOST_CPU_S = 0.05  # of one callback of the asker's event loop
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


@pytest.fixture
def longest_callback(monkeypatch) -> Iterator[list[float]]:
    """The CPU seconds of the longest callback of the event loop, in its own thread."""
    seconds = [0.0]
    run = asyncio.events.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        seconds[0] = max(seconds[0], time.thread_time() - began)

    monkeypatch.setattr(asyncio.events.Handle, "_run", measured)
    yield seconds
    gc.unfreeze()


def judge_all(answers: list[tuple[str, str]], verdict_s: float) -> list:
    """Judges (task, answer) pairs by one service, and an honest answer of each task after them."""
    domain = Mixture({task: ReasoningGym(task) for task in dict(answers)})
    entries = {task: ReasoningGym(task).train_problem(0).data for task in dict(answers)}
    options = JudgingConfig(workers=2, verdict_s=verdict_s, memory_bytes=1 << 30)

    async def one(judge: JudgingClient, task: str, answer: str):
        return task, answer[:80], await judge.judged(f"{task}/{task}", entries[task], answer)

    async def scenario():
        async with judge_of(domain, options) as judge:
            gc.freeze()  # a collection amid the answers has only theirs to look through
            found = await asyncio.gather(*(one(judge, *answer) for answer in answers))
            answered = [task for task in entries if entries[task]["answer"]]  # by the library
            assert len(answered) >= len(entries) - 3
            for task in answered:
                honest = (await one(judge, task, f"<answer>{entries[task]['answer']}</answer>"))[2]
                assert honest.success, (task, honest)
            return found

    return asyncio.run(scenario())


def assert_withstood(answers: list[tuple[str, str]], target: Target, verdict_s: float = 1.0) -> None:
    judged = judge_all(
        [(task, f"<answer>{target.aimed(text)}</answer>") for task, text in answers], verdict_s
    )
    assert len(judged) == len(answers)
    assert [each for each in judged if each[2].success or each[2].reward > 0.1] == []
    target.assert_untouched()


def test_code_in_an_answer_to_the_six_tasks_runs_nowhere(target, longest_callback):
    assert_withstood([(task, text) for task in THE_SIX for text in CODE.values()], target)
    assert longest_callback[0] < MOST_CPU_S


@pytest.mark.engines
def test_an_endless_or_huge_answer_costs_itself(target, longest_callback):
    answers = [("countdown", ENDLESS["power"]), ("coin_flip", ENDLESS["fraction"])]
    answers += [
        (task, LARGE[name]) for task in ("n_queens", "jugs") for name in LARGE if "{" not in LARGE[name]
    ]
    assert_withstood(answers, target)
    assert longest_callback[0] < MOST_CPU_S


@pytest.mark.engines
def test_every_answer_to_every_task_that_evaluates_any(target, longest_callback):
    texts = [*CODE.values(), *(text.replace("{", "{{").replace("}", "}}") for text in LARGE.values())]
    answers = [(task, text) for task in TASKS for text in texts]
    answers += [(task, text) for task in TASKS for text in ENDLESS.values()]
    assert len(CODE) >= 40 and len(answers) > 1000
    assert_withstood(answers, target, verdict_s=0.5)
    assert longest_callback[0] < MOST_CPU_S
