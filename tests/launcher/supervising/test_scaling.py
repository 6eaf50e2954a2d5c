"""How a launcher is asked for servers, and answers: through files of the run directory."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelinerl.launcher.supervising.scaling import (
    QUESTION,
    ServersAsked,
    ask_for_servers,
    forget_what_was_asked,
)
from tests.pipeline.runs import wait_for

PATIENT_S = 30.0


def answered(run: Path, refusal: str) -> tuple[int, str | None]:
    """Returns the number that the launcher was asked for, and what the asker was told."""
    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(ask_for_servers, run, 3, PATIENT_S)
        launcher = ServersAsked(run)
        question = wait_for(launcher.read)
        launcher.answer(question, refusal)
        return question.number, told.result()


@pytest.mark.parametrize("refusal", ["", "no port is left"])
def test_the_asker_is_told_what_the_launcher_says_and_no_file_is_left(tmp_path, refusal):
    assert answered(tmp_path, refusal) == (3, refusal)
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_that_does_not_answer_is_asked_no_more(tmp_path):
    assert ask_for_servers(tmp_path, 3, within_s=0.0) is None
    assert ServersAsked(tmp_path).read() is None


def test_who_gives_up_takes_no_other_question_along(tmp_path):
    asked = threading.Thread(target=ask_for_servers, args=(tmp_path, 3, 0.5))
    asked.start()
    wait_for((tmp_path / QUESTION).exists)
    (tmp_path / QUESTION).write_text("other 5\n")
    asked.join()
    assert ServersAsked(tmp_path).read().number == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"3\n", b"me 0\n", b"me -1\n", b"me two\n", b"me \xff\n", b"m/e 3\n", b"me " + b"9" * 5000],
)
def test_what_is_no_question_is_taken_away(tmp_path, content):
    (tmp_path / QUESTION).write_bytes(content)
    assert ServersAsked(tmp_path).read() is None
    assert list(tmp_path.iterdir()) == []


def test_questions_of_an_earlier_launch_are_forgotten(tmp_path):
    (tmp_path / QUESTION).write_text("me 3\n")
    ServersAsked(tmp_path).answer(ServersAsked(tmp_path).read(), "")
    (tmp_path / QUESTION).write_text("me 3\n")
    forget_what_was_asked(tmp_path)
    assert list(tmp_path.iterdir()) == []
