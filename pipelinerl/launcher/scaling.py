"""How the user of a running run asks for another number of servers: a file in its directory.

`python -m pipelinerl.scale` writes it, the supervisor reads it a few times a second.
"""

from pathlib import Path

from contracts.support.files import write_atomically

FILE = "servers"


def ask_for_servers(run_dir: Path, number: int) -> None:
    write_atomically(run_dir / FILE, f"{number}\n", mode=0o600)


def forget_what_was_asked(run_dir: Path) -> None:
    """Removes what was asked of an earlier launch of the run, before this one can be asked."""
    (run_dir / FILE).unlink(missing_ok=True)


class ServersAsked:
    def __init__(self, run_dir: Path):
        self._path = run_dir / FILE
        self._taken = run_dir / f".{FILE}"

    def read(self) -> int | None:
        """Returns the number that was asked for since the last call, or None."""
        try:
            self._path.replace(self._taken)  # another one may be written meanwhile
        except FileNotFoundError:
            return None
        text = self._taken.read_text().strip()
        self._taken.unlink()
        return int(text) if text.isdecimal() and int(text) else None
