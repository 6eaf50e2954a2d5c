"""How the user of a running run asks its launcher for another number of servers, and is answered: by files.

`python -m pipelinerl.scale` asks, and the supervisor looks a few times a second. Every node that shares the
run directory sees the files, and asking claims nothing of a run that lives.
"""

import secrets
import time
from pathlib import Path
from typing import NamedTuple

from contracts.support.files import write_atomically

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
    write_atomically(question, f"{asker} {number}\n", mode=0o600)
    began = time.monotonic()
    while not answer.exists():
        if time.monotonic() > began + within_s:
            question.unlink(missing_ok=True)
            return None
        time.sleep(POLL_S)
    said = answer.read_text().strip()
    answer.unlink()
    return said


def forget_what_was_asked(run_dir: Path) -> None:
    """Removes what was asked of an earlier launch of the run, before this one can be asked."""
    for path in [run_dir / QUESTION, *run_dir.glob(f"{ANSWERS}*")]:
        path.unlink(missing_ok=True)


class ServersAsked:
    """The launcher's side."""

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._taken = run_dir / f".{QUESTION}"

    def read(self) -> Question | None:
        """Returns what was asked since the last call, or None."""
        try:
            (self._run_dir / QUESTION).replace(self._taken)  # another one may be written meanwhile
        except FileNotFoundError:
            return None
        asker, _, number = self._taken.read_text().strip().partition(" ")
        self._taken.unlink()
        return (
            Question(asker, int(number)) if asker.isalnum() and number.isdecimal() and int(number) else None
        )

    def answer(self, question: Question, refusal: str) -> None:
        """Tells the asker why its wish is refused, or "" if it is not."""
        write_atomically(self._run_dir / f"{ANSWERS}{question.asker}", refusal, mode=0o600)
