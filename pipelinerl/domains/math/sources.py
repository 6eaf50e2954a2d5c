"""Data sets of problems with answers: Hugging Face's, or local files, loaded by the library `datasets`.

The library keeps what it has loaded in its cache, takes up a broken download where it stopped, and maps
the rows into memory.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetsError

FILE_FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


@dataclass(frozen=True)
class Source:
    """Where problems are found, and which fields of a row hold them.

    path: `org/name` of a data set on the Hugging Face hub, or a local .parquet, .jsonl or .json file.
    split, config: as the hub's data set calls them.
    problem, answer: fields; dots lead into nested ones.
    answer_pattern: regular expression whose first group cuts the answer out of the field.
    """

    path: str
    split: str = "train"
    config: str | None = None
    problem: str = "problem"
    answer: str = "answer"
    answer_pattern: str | None = None

    @property
    def is_local(self) -> bool:
        return Path(self.path).suffix in FILE_FORMATS


class Row(NamedTuple):
    problem: str
    answer: str


def sources_of(options: Mapping[str, Mapping[str, str]]) -> dict[str, Source]:
    """By name, from the configuration. Raises ValueError for what is no field of a source."""
    known = [field.name for field in fields(Source)]
    for name, given in options.items():
        if unknown := [key for key in given if key not in known]:
            raise ValueError(f"sources.{name}: no field {unknown[0]!r}; there are {', '.join(known)}")
        if "path" not in given:
            raise ValueError(f"sources.{name} needs a path: a hub's org/name, or a local file")
        if re.compile(given.get("answer_pattern") or "()").groups < 1:
            raise ValueError(f"sources.{name}.answer_pattern has no group: it is what the answer is")
    return {name: Source(**given) for name, given in options.items()}


class Rows:
    """The rows of one source, in its order."""

    def __init__(self, name: str, source: Source):
        self.name, self._source = name, source
        self._rows = _loaded(name, source).flatten()
        for role in ("problem", "answer"):
            field = getattr(source, role)
            if field not in self._rows.column_names:
                there = ", ".join(self._rows.column_names)
                raise ValueError(
                    f"{name}: sources.{name}.{role}={field} is no field of it; there are {there}"
                )

    def __getitem__(self, index: int) -> Row:
        row = self._rows[index]
        return self._row(row[self._source.problem], row[self._source.answer])

    def __iter__(self) -> Iterator[Row]:
        """Column by column: row by row takes a hundred times as long."""
        columns = (self._rows[field][:] for field in (self._source.problem, self._source.answer))
        return map(self._row, *columns)

    def _row(self, problem: object, answer: object) -> Row:
        return Row("" if problem is None else str(problem).strip(), self._cut(answer))

    def _cut(self, value: object) -> str:
        answer = "" if value is None else str(value).strip()
        if self._source.answer_pattern is None:
            return answer
        found = re.search(self._source.answer_pattern, answer)
        return found.group(1).strip() if found else ""


def _loaded(name: str, source: Source) -> Dataset:
    return _from_file(name, Path(source.path)) if source.is_local else _from_hub(name, source)


def _from_file(name: str, path: Path) -> Dataset:
    if not path.is_file():
        raise ValueError(f"{name}: there is no file {path.absolute()}")
    try:
        return load_dataset(FILE_FORMATS[path.suffix], data_files=str(path), split="train")
    except (DatasetsError, OSError) as error:
        raise ValueError(f"{name}: {path} could not be read: {error.__cause__ or error}") from None


def _from_hub(name: str, source: Source) -> Dataset:
    try:
        return load_dataset(source.path, source.config, split=source.split)
    except (DatasetsError, OSError) as error:
        raise ValueError(
            f"{name}: {source.path} is not in the cache and could not be loaded ({error}); run once with a "
            f"network and the same HF_HOME, or point sources.{name}.path at a local .parquet or .jsonl file"
        ) from None
