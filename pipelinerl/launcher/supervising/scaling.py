"""How the user of a running run asks its launcher for another number of servers, and is answered: by files.

`python -m pipelinerl.scale` asks, and the supervisor looks a few times a second. Every node that shares the
run directory sees the files, and asking claims nothing of a run that lives.
"""

import secrets
import time
from pathlib import Path
from typing import NamedTuple

from contracts.support.files import write_atomically
from pipelinerl.launcher.messages import say

QUESTION = "servers"
ANSWERS = ".servers-answer-"  # and who asked
POLL_S = 0.2


class Question(NamedTuple):
    asker: str
    number: int  # of servers


def ask_for_servers(run_dir: Path, number: int, within_s: float) -> str | None:
    """Returns why the launcher refuses, "" if it does not, or None where no launcher has answered in time."""
    asker = secrets.token_hex(8)
    question = run_dir / QUESTION
    answer = run_dir / f"{ANSWERS}{asker}"
    write_atomically(question, f"{asker} {number}\n")
    began = time.monotonic()
    while not answer.exists():
        if time.monotonic() > began + within_s:
            if _text(question).startswith(asker):  # another's stays
                question.unlink(missing_ok=True)
            return None
        time.sleep(POLL_S)
    said = _text(answer)
    answer.unlink()
    return said


def forget_what_was_asked(run_dir: Path) -> None:
    """Removes what was asked of an earlier launch of the run, before this one can be asked."""
    for path in [run_dir / QUESTION, *run_dir.glob(f"{ANSWERS}*")]:
        path.unlink(missing_ok=True)


class ServersAsked:
    """Reads what is asked, and answers it, on the launcher's side."""

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._taken = run_dir / f".{QUESTION}"

    def read(self) -> Question | None:
        """Returns what was asked since the last call, or None."""
        try:
            (self._run_dir / QUESTION).replace(self._taken)  # another one may be written meanwhile
        except FileNotFoundError:
            return None
        asker, _, number = _text(self._taken).partition(" ")
        self._taken.unlink()
        if not (asker.isalnum() and number.isdecimal() and 0 < len(number) < 9 and int(number)):
            return None
        return Question(asker, int(number))

    def answer(self, question: Question, refusal: str) -> None:
        """Tells the asker why its wish is refused, or "" if it is not."""
        try:
            write_atomically(self._run_dir / f"{ANSWERS}{question.asker}", refusal)
        except OSError as error:
            say(f"who asked for servers is not answered: {error}")


def _text(path: Path) -> str:
    """Returns what is in a file, or nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
