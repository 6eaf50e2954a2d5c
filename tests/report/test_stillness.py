"""That nothing moves is said once, with who is waited for."""

import pytest

from pipelinerl.report.console import ConsoleView
from pipelinerl.report.newest_warning import newest_warning
from pipelinerl.report.stillness import STILL_S, Stillness

LOADED = ("trainer", {"step": 0, "weight_version": 0})
STARTED = [LOADED, ("preprocessor", {"step": 0})]


def progress(requests: int, rollouts: int, finished: int = 0, attempts: int = 0) -> tuple[str, dict]:
    numbers = {"in_flight": requests, "rollouts_under_way": rollouts}
    return "actor", {"step": 0, **numbers, "rollouts_finished": finished, "attempts_finished": attempts}


@pytest.mark.parametrize(
    ("lines", "servers", "awaited"),
    [
        ([], 2, "the first weights to be published: the trainer or the servers (2 alive) load"),
        ([], None, "an inference server: none is alive"),
        ([*STARTED, progress(3, 3)], 0, "an inference server: none is alive"),
        ([*STARTED, progress(3, 4)], 1, "the servers (1 alive): 3 requests are in flight"),
        (
            [*STARTED, progress(3, 4), ("actor", {"servers_held": 1})],
            1,
            "a server with usable weights (1",
        ),
        ([*STARTED, progress(0, 4)], 1, "what judges or answers rollouts: 4 are under way"),
        ([*STARTED, progress(0, 0, 32)], 1, "the preprocessor to form step 1"),
        ([*STARTED, ("preprocessor", {"step": 1}), progress(9, 9)], 1, "the trainer's step 1"),
        ([*STARTED, ("trainer", {"step": 1, "loss": 0.5})], 2, "the trainer to publish weight version 1"),
    ],
)
def test_who_is_waited_for_follows_from_what_the_metrics_say(lines, servers, awaited):
    stillness = Stillness(0.0)
    for process, line in lines:
        stillness.observe(process, line, 1.0)
    assert stillness.sentence(STILL_S - 1, servers) is None
    said = stillness.sentence(STILL_S + 1, servers)
    assert said.startswith(f"nothing has moved for 60 s: waiting for {awaited}")


@pytest.mark.parametrize(
    "line",
    [
        ("trainer", {"step": 1}),
        ("trainer", {"step": 0, "weight_version": 1}),
        ("preprocessor", {"step": 0, "dropped_stale": 1}),
        progress(3, 3, finished=1),
        progress(3, 3, attempts=1),
    ],
)
def test_it_is_said_once_until_something_moves(line):
    stillness = Stillness(0.0)
    for process, first in [*STARTED, progress(3, 3)]:
        stillness.observe(process, first, 0.0)
    assert stillness.sentence(STILL_S, 1)
    stillness.observe(*progress(2, 3), 2 * STILL_S)  # the same rollouts are still under way
    assert stillness.sentence(3 * STILL_S, 1) is None
    stillness.observe(*line, 3 * STILL_S)
    assert stillness.sentence(4 * STILL_S - 1, 1) is None
    assert stillness.sentence(4 * STILL_S, 1)


def test_the_console_prints_it_with_the_newest_warning(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pipelinerl.report.stillness.STILL_S", 0.0)
    (tmp_path / "logs").mkdir()
    for process, at, says in (
        ("actor", 2000, "long ago"),
        ("server-0", 2999, "[/answers]\x1b[2J"),
        ("judging", 2998, "no"),
    ):
        line = f"{at}-01-01 00:00:00,123 {process} WARNING {says}\nTraceback\n"
        (tmp_path / "logs" / f"{process}.log").write_text(line)
    with ConsoleView(tmp_path, 10) as view:
        view.update(1)
        view.update(1)
    shown = capsys.readouterr().out
    assert shown.count("waiting for the first weights to be published") == 1
    assert "; at 2999-01-01 00:00:00 logs/server-0.log warned: [/answers]\\x1b[2J" in shown
    (tmp_path / "logs" / "server-0.log").unlink()
    (tmp_path / "logs" / "judging.log").unlink()
    assert newest_warning(tmp_path, 60.0) is None
