"""Hostile texts are judged, by what each level claims. A text may cost its own verdict, nothing else."""

import os
import pickle
import platform
from contextlib import suppress

import pytest

from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.workers import WorkerLostError
from tests.judging.hostile_judge import ExecutingJudge
from tests.judging.isolation.hostile import ALL, ENDLESS, FOREIGN_CALL, HARMLESS, UNBOUNDED

SHORT_S = 0.1
INNOCENT = {"reward = 1": Judgement(1.0, True, "right"), "reward = 0.25": Judgement(0.25, False, "wrong")}
SECRETS = """
import contextlib
seen = str(dict(os.environ)) + str(sys.argv)
for module in list(sys.modules.values()):
    with contextlib.suppress(Exception):
        seen += str(vars(module))
assert "a-secret-of-the-service" in seen
"""
PATCHES = {
    "the judge": (
        "import tests.judging.hostile_judge as h\n"
        "from pipelinerl.judging.wire import Judgement\n"
        "h.ExecutingJudge.__call__ = lambda *a: Judgement(1.0, True, 'right')"
    ),
    "a library": "import builtins\nbuiltins.float = lambda x: 1.0",
    "what is counted": "import pipelinerl.judging.worker as w\nw.Worker._answer = lambda *a: 1",
}
FRAMES = {
    "a pickle": pickle.dumps(AssertionError),
    "nothing": b"",
    "what is no message": b"\xff" * 100,
    "a deep message": b"\x91" * 60_000,
    "a judgement of another type": b"\x82\xa4type\xa6Judged\xa9judgement\xc0",
}


def innocent_verdicts_are_right(court) -> bool:
    return all(court.judged(text) == judgement for text, judgement in INNOCENT.items())


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_a_sealed_worker_cannot(sealed, text):
    assert not sealed.gets_through(text)
    assert sealed.judged("reward = 0.25").reward == 0.25
    assert sorted(path.name for path in sealed.marker.parent.iterdir()) == ["marker.secret"]
    assert not any(os.path.exists(f"{place}/{sealed.marker.name}") for place in ("/tmp", "/dev/shm"))
    sealed.wait_for_the_end_of_all()


def test_no_secret_is_in_a_worker(at_each_level):
    assert not at_each_level.gets_through(SECRETS)


@pytest.mark.parametrize(("text", "why"), UNBOUNDED.values(), ids=UNBOUNDED)
def test_what_a_worker_uses_is_bounded(at_each_level, text, why):
    judgement = at_each_level.judged(text + "\nreward = 1")
    assert judgement is None if why is None else judgement.outcome == f"undecided:{why}"
    assert innocent_verdicts_are_right(at_each_level)


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_what_does_not_end_is_ended(at_each_level, text, capfd):
    assert at_each_level.judged(text, verdict_s=SHORT_S).outcome == "undecided:time"
    at_each_level.wait_for_the_end_of_all()
    assert capfd.readouterr() == ("", "")
    assert innocent_verdicts_are_right(at_each_level)


def test_who_closes_its_channel_is_ended_without_waiting(at_each_level):
    text = "os.closerange(0, 64)\nwhile True:\n    pass"
    assert at_each_level.judged(text).outcome == "undecided:memory"
    at_each_level.wait_for_the_end_of_all()


@pytest.mark.parametrize("text", PATCHES.values(), ids=PATCHES)
def test_a_text_decides_on_no_other(at_each_level, text):
    at_each_level.judged(text)
    assert innocent_verdicts_are_right(at_each_level)


def test_a_text_that_patches_the_judge_would_decide_on_others_in_one_process(monkeypatch):
    monkeypatch.setattr(ExecutingJudge, "__call__", ExecutingJudge.__call__)
    ExecutingJudge()("", b"", PATCHES["the judge"])
    assert ExecutingJudge()("", b"", "reward = 0").success


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_forged_frame_is_no_judgement(at_each_level, frame):
    text = f"frame = {frame!r}\nfor n in range(3, 64):\n    try:\n"
    text += "        os.write(n, len(frame).to_bytes(4) + frame)"
    text += "\n    except OSError:\n        pass\nos._exit(0)"
    assert at_each_level.judged(text).outcome == "undecided:output"
    assert innocent_verdicts_are_right(at_each_level)


@pytest.mark.parametrize("length", [1 << 17, (1 << 32) - 1])
def test_a_frame_without_end_is_not_read(at_each_level, length):
    text = f"for n in range(3, 64):\n    try:\n        os.write(n, ({length}).to_bytes(4))"
    text += "\n        while True:\n            os.write(n, bytes(65536))\n    except OSError:\n        pass"
    assert at_each_level.judged(text).outcome == "undecided:output"
    assert innocent_verdicts_are_right(at_each_level)


@pytest.mark.parametrize(
    "fields",
    [
        "reward = float('nan')",
        "reward = -1e400",
        "metrics = {'x': float('inf')}",
        "metrics = dict.fromkeys(map(str, range(100)), 1.0)",
        "metrics = {'x' * 100: 1.0}",
        "metrics = {'../x\\n': 1.0}",
        "metrics = {'x' * 70000: 1.0}",
        "outcome = 'undecided:a word of its own'",
        "outcome = 'x' * 100",
    ],
)
def test_a_judgement_that_could_harm_who_reads_it_is_none(sealed, fields):
    assert sealed.judged(fields).outcome == "undecided:output"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is no other convention")
def test_a_call_in_another_convention_ends_the_worker(sealed):
    assert sealed.judged(FOREIGN_CALL).outcome == "undecided:output"
    sealed.wait_for_the_end_of_all()


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_what_scorers_do_works(at_each_level, text):
    assert at_each_level.judged("reward = 0.25\n" + text).reward == 0.25


def test_a_worker_that_kills_its_parent_costs_no_verdict(at_each_level):
    with suppress(WorkerLostError):  # the text itself has no verdict where its worker ends with the parent
        at_each_level.judged("os.kill(parent, 9)")
    assert innocent_verdicts_are_right(at_each_level)
