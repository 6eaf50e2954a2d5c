"""Reads the problems of a data set: a local .jsonl or .parquet file, or one of the Hugging Face Hub."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from extensions.programs import families
from extensions.programs.schemas import SCHEMAS, CodeProblem, UnfitError, problem_of

FORMATS = (".jsonl", ".parquet")
MADE = "made"
ROW = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Source:
    """path: `org/name` on the Hub, or a local file. schema: one of `SCHEMAS`. split, config: of the Hub's.

    The schema `made` is that of this package's problems, whatever the path. Their splits are train, heldout.
    """

    path: str
    schema: str
    split: str = "train"
    config: str | None = None

    @property
    def is_local(self) -> bool:
        return self.schema == MADE or Path(self.path).suffix in FORMATS


def source_of(name: str, options: Mapping[str, Any]) -> Source:
    """Returns the configured source. Raises ValueError if an option is wrong."""
    known = [field.name for field in fields(Source)]
    if unknown := [key for key in options if key not in known]:
        raise ValueError(f"sources.{name}: no field {unknown[0]!r}; there are {', '.join(known)}")
    if missing := [key for key in ("path", "schema") if key not in options]:
        raise ValueError(f"sources.{name} needs {missing[0]}")
    if options["schema"] not in SCHEMAS:
        raise ValueError(f"sources.{name}.schema={options['schema']}; there are {', '.join(SCHEMAS)}")
    source = Source(**options)
    if not source.is_local and Path(source.path).suffix == ".json":
        raise ValueError(f"sources.{name}.path={source.path}: convert it to one of {', '.join(FORMATS)}")
    if not source.is_local and Path(source.path).exists():
        raise ValueError(f"sources.{name}.path={source.path}: name a file of {', '.join(FORMATS)}")
    return source


class Problems:
    """The usable problems of a source.

    left_out: the counts of the other rows, by reason. firsts: the first row of each reason, in words.
    Raises ValueError if the source cannot be read, or none of its rows can be used.
    """

    def __init__(self, name: str, source: Source):
        self.left_out: Counter[str] = Counter()
        self.firsts: dict[str, str] = {}
        self.found: list[CodeProblem] = []
        seen: set[str] = set()
        for number, row in enumerate(_rows(name, source), 1):
            try:
                problem = problem_of(source.schema, row)
                if problem.statement in seen:
                    raise UnfitError("with the statement of an earlier row")
            except UnfitError as error:
                reason = str(error)
                self.left_out[reason] += 1
                self.firsts.setdefault(reason, f"row {number}{': ' if error.detail else ''}{error.detail}")
                continue
            seen.add(problem.statement)
            self.found.append(problem._replace(problem_id=problem.problem_id or f"row-{number}"))
        if not self.found:
            reasons = ", ".join(map(self.words, self.left_out)) or "it is empty"
            raise ValueError(f"{name}: no row of {source.path} can be used: {reasons}")

    def words(self, reason: str) -> str:
        """Returns how many rows a reason left out, and the first of them."""
        first = f" ({self.firsts[reason]})" if reason in self.firsts else ""
        return f"{self.left_out[reason]:,} {reason}{first}"


def _rows(name: str, source: Source) -> Iterator[Mapping[str, Any]]:
    if source.schema == MADE:
        yield from families.rows(source.split)
        return
    if not source.is_local:
        yield from _of_hub(name, source)
        return
    path = Path(source.path)
    if not path.is_file():
        raise ValueError(f"{name}: there is no file {path.absolute()}")
    yield from _of_json(name, path) if path.suffix == ".jsonl" else _of_parquet(name, path)


def _of_json(name: str, path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield ROW.decode(line)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{name}: line {number} of {path} is no JSON object: {error}") from None


def _of_parquet(name: str, path: Path) -> Iterator[Mapping[str, Any]]:
    from pyarrow import ArrowInvalid, parquet

    try:
        yield from parquet.read_table(path).to_pylist()
    except (ArrowInvalid, OSError) as error:
        raise ValueError(f"{name}: {path} could not be read: {error}") from None


def _of_hub(name: str, source: Source) -> Iterator[Mapping[str, Any]]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        yield from load_dataset(source.path, source.config, split=source.split)
    except (DatasetsError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{name}: {source.path} is not in the cache and could not be loaded ({error}); run once with a "
            f"network and the same HF_HOME, or point sources.{name}.path at a local .parquet or .jsonl file"
        ) from None
