"""How the user of a running run asks for another number of servers: a file in its directory.

`python -m pipelinerl.scale` writes it, the supervisor reads it a few times a second.
"""

from pathlib import Path

from contracts.support.files import write_atomically

FILE = "servers"


def ask_for_servers(run_dir: Path, number: int) -> None:
    write_atomically(run_dir / FILE, f"{number}\n", mode=0o600)


class ServersAsked:
    """Reads each request once. What was asked of an earlier launch of the run is forgotten."""

    def __init__(self, run_dir: Path):
        self._path = run_dir / FILE
        self._path.unlink(missing_ok=True)

    def read(self) -> int | None:
        """Returns the number that was asked for since the last call, or None."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return None
        self._path.unlink()
        return int(text)
