"""How a launcher is asked for servers, and answers: through files of the run directory."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelinerl.launcher.supervising.scaling import (
    REQUEST,
    ScaleRequests,
    remove_scale_requests,
    request_servers,
)
from tests.pipeline.runs import wait_for

PATIENT_S = 30.0


def answered(run: Path, refusal: str) -> tuple[int, str | None]:
    """Returns the number that the launcher was asked for, and what the asker was told."""
    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(request_servers, run, 3, PATIENT_S)
        launcher = ScaleRequests(run)
        request = wait_for(launcher.read)
        launcher.answer(request, refusal)
        return request.servers, told.result()


@pytest.mark.parametrize("refusal", ["", "no port is left"])
def test_the_asker_is_told_what_the_launcher_says_and_no_file_is_left(tmp_path, refusal):
    assert answered(tmp_path, refusal) == (3, refusal)
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_that_does_not_answer_is_asked_no_more(tmp_path):
    assert request_servers(tmp_path, 3, within_s=0.0) is None
    assert ScaleRequests(tmp_path).read() is None


def test_who_gives_up_takes_no_other_question_along(tmp_path):
    asked = threading.Thread(target=request_servers, args=(tmp_path, 3, 0.5))
    asked.start()
    wait_for((tmp_path / REQUEST).exists)
    (tmp_path / REQUEST).write_text("other 5\n")
    asked.join()
    assert ScaleRequests(tmp_path).read().servers == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"3\n", b"me 0\n", b"me -1\n", b"me two\n", b"me \xff\n", b"m/e 3\n", b"me " + b"9" * 5000],
)
def test_what_is_no_question_is_taken_away(tmp_path, content):
    (tmp_path / REQUEST).write_bytes(content)
    assert ScaleRequests(tmp_path).read() is None
    assert list(tmp_path.iterdir()) == []


def test_questions_of_an_earlier_launch_are_forgotten(tmp_path):
    (tmp_path / REQUEST).write_text("me 3\n")
    ScaleRequests(tmp_path).answer(ScaleRequests(tmp_path).read(), "")
    (tmp_path / REQUEST).write_text("me 3\n")
    remove_scale_requests(tmp_path)
    assert list(tmp_path.iterdir()) == []
