"""Work in a forked process: what comes back of it, and what happens when it does not end well."""

import os
import signal
import sys
from concurrent.futures import Future

import pytest
from pydantic import BaseModel

from benchmarks.run_processes import state_of
from pipelinerl.errors import PartError, PlanError
from pipelinerl.launcher.forked import in_forked
from tests.pipeline.runs import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")


class Strict(BaseModel):
    number: int


def raising(error: BaseException):
    raise error


def test_the_result_comes_from_another_process():
    assert in_forked(os.getpid) != os.getpid()
    assert len(in_forked(lambda: "a" * 10**7)) == 10**7
    assert in_forked(lambda: Strict(number=3)) == Strict(number=3)


def test_a_refusal_and_a_full_disk_are_raised_here():
    with pytest.raises(PlanError, match="^no such part$"):
        in_forked(lambda: raising(PlanError("no such part")))
    with pytest.raises(PlanError, match="^number: Input should be a valid integer"):
        in_forked(lambda: Strict(number="x"))
    with pytest.raises(OSError) as full:
        in_forked(lambda: raising(OSError(28, "No space left", "/disk/file")))
    assert (full.value.errno, full.value.filename) == (28, "/disk/file")


class OfALibraryError(OSError):
    """An error that cannot be sent to another process."""

    def __init__(self, message: str, *, response: int):
        super().__init__(message, response)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (
            OfALibraryError("no such page", response=404),
            f"{__name__}.OfALibraryError: [Errno no such page] 404",
        ),
    ],
)
def test_an_error_of_a_library_is_printed_and_ends_this_process(capfd, error, says):
    failed: Future[None] = Future()
    failed.set_exception(error)
    with pytest.raises(SystemExit) as end:
        in_forked(failed.result)
    assert end.value.code == 1
    assert capfd.readouterr().err.splitlines()[-1] == says


def test_an_error_of_the_users_code_is_one_line_with_its_place():
    with pytest.raises(PartError, match=r"^tests/launcher/test_forked.py:\d+ raised KeyError: 'gpus'$"):
        in_forked(lambda: raising(KeyError("gpus")))


def test_a_process_that_the_work_leaves_behind_ends_with_it():
    def work() -> int:
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.pause()
        return child

    with pytest.raises(ProcessLookupError):
        os.kill(in_forked(work), 0)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended by signal 9"),
        (lambda: os._exit(0), "ended with status 0, by os._exit; a part"),
        (lambda: os._exit(7), "ended with status 7, by os._exit; a part"),
    ],
)
def test_a_process_that_ends_before_its_work_is_no_result(end, says):
    with pytest.raises(SystemExit, match=says):
        in_forked(end)


def test_a_part_that_ends_the_process_is_named_by_its_place():
    with pytest.raises(PartError, match=r"test_forked.py:\d+: expected a part that does not end the process"):
        in_forked(lambda: sys.exit("set the key"))


def test_an_interruption_ends_the_work_and_lets_it_clean_up(tmp_path):
    def work() -> None:
        try:
            wait_for(lambda: state_of(os.getppid()) == "S")  # it waits for the outcome
            os.kill(os.getppid(), signal.SIGUSR1)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # another one, which must not interrupt what follows
            (tmp_path / "cleaned").touch()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_forked(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (tmp_path / "cleaned").exists()
