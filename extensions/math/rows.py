"""The rows of a source: problems, as text or as messages, and the texts of their answers."""

import re
from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from datasets import Dataset, Value

from extensions.math.json_rows import Values, as_text, read_json, value_at
from extensions.math.sources import JSON, Source, local_file, table_of

Message = dict[str, str]
MESSAGES = msgspec.json.Decoder(list[dict[str, Any]])
NUMBERS = msgspec.json.Decoder(list[int | float])
TEXT_TYPES = re.compile(r"string|large_string|u?int\d+|float\d+|decimal.*|null")
ROLES = re.compile(r"(?:system )?(?:user assistant )*user")


class Row(NamedTuple):
    """A problem and its answer, which may be empty. messages: the conversation, if the problem is one."""

    problem: str
    answer: str
    messages: Sequence[Message] = ()


class Rows:
    """The rows of one source, in its order."""

    def __init__(self, name: str, source: Source):
        self._name = name
        self._source = source
        in_json = Path(source.path).suffix in JSON
        self._rows = list(self._of_json() if in_json else self._of_table())
        if not self._rows:
            raise ValueError(f"{name}: {source.path} has no row")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def _of_json(self) -> Iterator[Row]:
        path = local_file(self._name, self._source)
        try:
            rows = read_json(path)
        except ValueError as error:
            raise ValueError(f"{self._name}: {error}") from None
        for role in ("problem", "answer"):
            field = getattr(self._source, role)
            if rows and not any(value_at(row, field) is not None for row in rows):
                self._refuse_field(role, list(dict.fromkeys(key for row in rows for key in row)))
        for number, row in enumerate(rows, 1):
            yield self._row(number, self._problem_in(number, row), self._answer_in(number, row))

    def _problem_in(self, number: int, row: Values) -> str | list[Message] | None:
        value = value_at(row, self._source.problem)
        begin = b"" if value is None else bytes(value)[:1]
        if begin == b"{":
            raise ValueError(
                f"{self._where(number)} is a record, and no text or list of messages; point "
                f"sources.{self._name}.problem at another, or convert it"
            )
        if begin != b"[":
            return None if value is None else as_text(value)
        try:
            return MESSAGES.decode(value)
        except msgspec.ValidationError as error:
            raise ValueError(f"{self._where(number)} is a list of no messages: {error}") from None

    def _answer_in(self, number: int, row: Values) -> str | None:
        field = self._source.answer
        value = value_at(row, field)
        if value is not None and (bytes(value)[:1] == b"{" or _is_list_of_texts(value)):
            raise ValueError(
                f"{self._name}: row {number}: the field {field} is a list or a record, and no text or "
                f"number; point sources.{self._name}.answer at another, or convert it"
            )
        return None if value is None else as_text(value)

    def _of_table(self) -> Iterator[Row]:
        table = table_of(self._name, self._source).flatten()
        for role in ("problem", "answer"):
            if getattr(self._source, role) not in table.column_names:
                self._refuse_field(role, table.column_names)
        self._check_types(table)
        # Reading complete columns is a hundred times as fast as row by row.
        columns = (_column(table, field) for field in (self._source.problem, self._source.answer))
        for number, (problem, answer) in enumerate(zip(*columns, strict=True), 1):
            is_text = problem is None or isinstance(problem, list)
            yield self._row(number, problem if is_text else str(problem), answer)

    def _check_types(self, table: Dataset) -> None:
        for role in ("problem", "answer"):
            field = getattr(self._source, role)
            kind = table.features[field]
            listed = role == "problem" and not isinstance(kind, Value) and _holds_messages(kind)
            if not listed and not (isinstance(kind, Value) and TEXT_TYPES.fullmatch(kind.dtype)):
                raise ValueError(
                    f"{self._name}: the field {field} is {_described(kind)}, and no text or number; "
                    f"point sources.{self._name}.{role} at another, or convert it"
                )

    def _row(self, number: int, problem: str | list[Message] | None, answer: Any) -> Row:
        cut = self._cut("" if answer is None else str(answer).strip())
        if not isinstance(problem, list):
            return Row((problem or "").strip(), cut)
        if not all(isinstance(m.get(key), str) for m in problem for key in ("role", "content")):
            raise ValueError(f"{self._where(number)} has a message without a role or a content in text")
        messages = [{"role": m["role"], "content": m["content"]} for m in problem]
        if not ROLES.fullmatch(" ".join(message["role"] for message in messages)):
            raise ValueError(f"{self._where(number)} has messages that do not end with the user's turn")
        return Row("\n".join(message["content"] for message in messages), cut, messages)

    def _cut(self, answer: str) -> str:
        if self._source.answer_pattern is None:
            return answer
        found = re.search(self._source.answer_pattern, answer)
        return (found.group(1) or "").strip() if found else ""

    def _where(self, number: int) -> str:
        return f"{self._name}: row {number}: the field {self._source.problem}"

    def _refuse_field(self, role: str, there: Sequence[str]) -> None:
        field = f"sources.{self._name}.{role}={getattr(self._source, role)}"
        raise ValueError(f"{self._name}: {field} is no field of it; there are {', '.join(there)}")


def _is_list_of_texts(value: msgspec.Raw) -> bool:
    """Returns True if a value is a list that is not only of numbers; `[1, 2]` may be an interval."""
    if bytes(value)[:1] != b"[":
        return False
    try:
        NUMBERS.decode(value)
    except msgspec.ValidationError:
        return True
    return False


def _column(table: Dataset, field: str) -> list[Any]:
    """Returns the values of a column. Those of float32 are texts such as 0.1, not 0.10000000149."""
    values = table[field][:]
    kind = getattr(table.features[field], "dtype", "")
    if not kind.startswith("float"):
        return values
    return [None if value is None or isnan(value) else str(np.dtype(kind).type(value)) for value in values]


def _holds_messages(kind: Any) -> bool:
    inner = kind[0] if isinstance(kind, list) else getattr(kind, "feature", None)
    return isinstance(inner, dict) and {"role", "content"} <= inner.keys()


def _described(kind: Any) -> str:
    return kind.dtype if isinstance(kind, Value) else "a list or a record"
