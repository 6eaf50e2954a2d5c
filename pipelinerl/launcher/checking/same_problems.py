"""Keeps which training problems a run has, so that it is never resumed with others.

A sampler's state is places in the problems' order: with other problems, it would mean others.
"""

from pathlib import Path

import msgspec

from contracts.support.files import replaced_atomically
from pipelinerl.domains.base import Domain
from pipelinerl.errors import PlanError

FILE = "problems.json"


class Problems(msgspec.Struct, frozen=True):
    count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.count:,} training problems (digest {self.digest})"


def problems_of(domain: Domain) -> Problems:
    return Problems(domain.train_size, domain.digest())


def keep_problems(run_dir: Path, problems: Problems) -> None:
    """Writes them into the directory of a run."""
    with replaced_atomically(run_dir / FILE) as unfinished:
        unfinished.write_bytes(msgspec.json.encode(problems))


def check_same(run_dir: Path, problems: Problems) -> None:
    """Raises PlanError if the run in the directory began with other training problems."""
    path = run_dir / FILE
    if not path.is_file():
        return
    before = msgspec.json.decode(path.read_bytes(), type=Problems)
    if before != problems:
        raise PlanError(
            f"the run began with {before}, and the domain now has {problems}: resume it with the same data, "
            f"or start a new run from the last model in {run_dir / 'checkpoints'}; without {path} it is "
            "resumed with others"
        )
