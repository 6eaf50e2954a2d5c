"""A subset of a domain's training problems, by indices or by a file of `extensions.tools.difficulty`."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from pipelinerl.domains.base import Domain, Problem, digest_of
from pipelinerl.domains.wrapped import Wrapped


class Selection(Wrapped):
    """The training problems with the given indices, in ascending order, renumbered 0, 1, 2, ..."""

    def __init__(self, domain: Domain, indices: Sequence[int]):
        super().__init__(domain)
        self._indices = indices

    @property
    def train_size(self) -> int:
        return len(self._indices)

    @property
    def parts(self) -> dict[str, range]:
        """The parts of the inner domain that have a problem in the selection."""
        found = {}
        for name, problems in self._domain.parts.items():
            here = range(
                bisect_left(self._indices, problems.start), bisect_left(self._indices, problems.stop)
            )
            if here:
                found[name] = here
        return found

    def difficulty(self, index: int) -> float:
        return self._domain.difficulty(self._indices[index])

    def longest_problems(self, count: int) -> list[int]:
        place = {index: place for place, index in enumerate(self._indices)}
        longest = self._domain.longest_problems(self._domain.train_size)
        return [place[index] for index in longest if index in place][:count]

    def digest(self) -> str:
        return digest_of([self._domain.digest(), *map(str, self._indices)])

    def train_problem(self, index: int) -> Problem:
        return self._domain.train_problem(self._indices[index])


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file: a training problem and the share of its attempts that succeeded."""

    index: int
    problem_id: str
    messages: list[dict[str, str]]
    success: float


class Subset(Selection):
    """The training problems in a file. A problem's difficulty is its share of failed attempts there.

    domain: the domain that the file was made with, with the same options and seed.
    path: the file.
    seed: the run's seed; the inner domain already has its own.
    """

    def __init__(self, domain: Domain, path: str | None, seed: int = 0):
        if path is None:
            raise ValueError("path is needed: of a file that `python -m extensions.tools.difficulty` made")
        listed = sorted(read_list(Path(path)), key=lambda line: line.index)
        for before, line in zip([None, *listed], listed, strict=False):
            if before and before.index == line.index:
                raise ValueError(f"{path} lists the training problem {line.index} twice")
        super().__init__(domain, [line.index for line in listed])
        self._path = path
        self._listed = listed

    @cached_property
    def train_size(self) -> int:
        """The number of problems. The first access raises ValueError if the file is not of the domain."""
        for line in self._listed:
            _check_same(self._path, line, self._domain)
        return len(self._listed)

    def difficulty(self, index: int) -> float:
        return 1 - self._listed[index].success


def read_list(path: Path) -> list[Listed]:
    if not path.is_file():
        raise ValueError(f"{path} is no file; `python -m extensions.tools.difficulty` makes one")
    try:
        listed = msgspec.json.Decoder(Listed).decode_lines(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no list of problems: {error}") from error
    if not listed:
        raise ValueError(f"{path} lists no problem")
    return listed


def _check_same(path: str, line: Listed, domain: Domain) -> None:
    problem = domain.train_problem(line.index) if 0 <= line.index < domain.train_size else None
    if not problem or (problem.problem_id, problem.messages) != (line.problem_id, line.messages):
        raise ValueError(
            f"{path} is not of this domain: its training problem {line.index} is another than "
            f"{line.problem_id}; the domain's options and seed must be those that the file was made with"
        )
