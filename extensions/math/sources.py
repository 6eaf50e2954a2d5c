"""Sources of data sets: the Hugging Face Hub, with the library `datasets` and its cache, or local files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetsError
from hydra.utils import get_method
from pyarrow import ArrowInvalid

JSON = (".jsonl", ".json")
FILE_FORMATS = (".parquet", *JSON)


@dataclass(frozen=True)
class Source:
    """The location of a data set, and the fields of problem and answer in its rows.

    path: `org/name` of a data set on the Hugging Face Hub, or a local .parquet, .jsonl or .json file.
    split, config: names of a split and a configuration of the Hub's data set.
    problem, answer: names of fields; dots lead into nested fields.
    answer_pattern: regular expression whose first group extracts the answer from the field.
    made_by: import path of a function that writes a missing file, called with its path.
    """

    path: str
    split: str = "train"
    config: str | None = None
    problem: str = "problem"
    answer: str = "answer"
    answer_pattern: str | None = None
    made_by: str | None = None

    @property
    def is_local(self) -> bool:
        return Path(self.path).suffix in FILE_FORMATS

    @property
    def is_here(self) -> bool:
        """True if the source is a local file that exists or that no function makes."""
        return self.is_local and (self.made_by is None or Path(self.path).is_file())


def sources_of(options: Mapping[str, Mapping[str, str]]) -> dict[str, Source]:
    """Returns the configured sources by name. Raises ValueError for invalid options."""
    known = [field.name for field in fields(Source)]
    for name, given in options.items():
        if unknown := [key for key in given if key not in known]:
            raise ValueError(f"sources.{name}: no field {unknown[0]!r}; there are {', '.join(known)}")
        if "path" not in given:
            raise ValueError(f"sources.{name} needs a path: a hub's org/name, or a local file")
        _check_pattern(name, given.get("answer_pattern") or "()")
    sources = {name: Source(**given) for name, given in options.items()}
    for name, source in sources.items():
        if not source.is_local and Path(source.path).is_file():
            raise ValueError(
                f"sources.{name}.path={source.path} is a file of another format; convert it to one of "
                f"{', '.join(FILE_FORMATS)}"
            )
        if source.made_by and not source.is_local:
            raise ValueError(f"sources.{name}.made_by makes a local file, and {source.path} is none")
    return sources


def _check_pattern(name: str, pattern: str) -> None:
    key = f"sources.{name}.answer_pattern"
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{key}={pattern} is no regular expression: {error}") from None
    if groups < 1:
        raise ValueError(f"{key} has no group: it is what the answer is")


def local_file(name: str, source: Source) -> Path:
    """Returns the path of a local source. Makes a missing file if `made_by` is given."""
    path = Path(source.path)
    if not source.is_here:
        _maker(name, source.made_by)(path)
    if not path.is_file():
        raise ValueError(f"{name}: there is no file {path.absolute()}")
    return path


def table_of(name: str, source: Source) -> Dataset:
    """Returns the data set of a local .parquet file or of the Hub. Raises ValueError if it cannot be read."""
    if not source.is_local:
        return _from_hub(name, source)
    path = local_file(name, source)
    try:
        return load_dataset("parquet", data_files=str(path), split="train")
    except (DatasetsError, OSError, ArrowInvalid) as error:
        raise ValueError(f"{name}: {path} could not be read: {error.__cause__ or error}") from None


def _maker(name: str, made_by: str) -> Callable[[Path], None]:
    try:
        return get_method(made_by)
    except ImportError as error:
        raise ValueError(f"{name}: sources.{name}.made_by={made_by} could not be loaded: {error}") from None


def _from_hub(name: str, source: Source) -> Dataset:
    try:
        return load_dataset(source.path, source.config, split=source.split)
    except (DatasetsError, OSError) as error:
        raise ValueError(
            f"{name}: {source.path} is not in the cache and could not be loaded ({error}); run once with a "
            f"network and the same HF_HOME, or point sources.{name}.path at a local .parquet or .jsonl file"
        ) from None
