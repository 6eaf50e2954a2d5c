"""The last words of a job, and how its end is said."""

from pathlib import Path

import pytest

from pipelinerl.launcher.supervising.job_starter import JobLogs, last_words

NEWS = "2026-01-01 12:00:00,000 trainer INFO step 3"
LOGGED = "2026-01-01 12:00:00,000 trainer ERROR rank 1 does not answer"
IGNORED = [
    "Exception ignored in: <coroutine object ask at 0x7f>",
    "Traceback (most recent call last):",
    '  File "a.py", line 3, in ask',
    "RuntimeError: coroutine ignored GeneratorExit",
]


@pytest.mark.parametrize(
    ("lines", "ended", "killed"),
    [
        ([NEWS, "ValueError: no such model", "Unclosed connector"], "ValueError: no such model", ""),
        ([NEWS, "ValueError: no such model"], "ValueError: no such model", "ValueError: no such model"),
        (["no such file"], "no such file", ""),
        (["Error: no module", "  at x:1", "Node.js v20.20.2"], "Error: no module", ""),
        (
            [*IGNORED, "ValueError: the true cause"],
            "ValueError: the true cause",
            "ValueError: the true cause",
        ),
        (["KeyError: 1", *IGNORED], "KeyError: 1", "KeyError: 1"),
        ([LOGGED], LOGGED, LOGGED),
        (["terminate called", "  what(): out of it"], "what(): out of it", "what(): out of it"),
        ([NEWS], "", ""),
        ([], "", ""),
    ],
)
def test_the_last_words_are_an_error_where_a_signal_has_ended_the_process(lines, ended, killed):
    text = "\n".join(lines)
    assert (last_words(text), last_words(text, was_killed=True)) == (ended, killed)


def test_what_an_earlier_process_wrote_is_not_the_last_word_also_where_the_log_began_anew(tmp_path: Path):
    logs = JobLogs(tmp_path)
    path = logs.begin("actor")
    assert logs.see("actor") == f"see {path}"
    path.write_text("OSError: of the first\n")
    logs.begin("actor")
    assert logs.see("actor", 1) == f"see {path}"
    with path.open("a") as log:
        log.write("OSError: of the second\n")
    assert logs.see("actor", 1) == f"see {path} (OSError: of the second)"
    path.rename(f"{path}.1")
    path.write_text("ValueError: new\n")
    assert logs.see("actor", 1) == f"see {path} (ValueError: new)"
