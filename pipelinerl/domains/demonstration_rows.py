"""Reads files of demonstrations or preferences. A line is in one of four forms, as text or as token ids:

    {"messages": [..., {"role": "assistant", "content": "4"}]}
    {"prompt": [{"role": "user", "content": "2+2"}], "chosen": "4", "rejected": "5"}
    {"prompt_token_ids": [5, 6], "token_ids": [7, 1]}
    {"prompt_token_ids": [5, 6], "chosen_token_ids": [7, 1], "rejected_token_ids": [8, 1]}

Token ids are those of the model under training, and an answer's last one ends the turn. `problem_id` is
optional and names the attempt. Other fields are ignored.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

Message = dict[str, str]
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    problem_id: str | None = None
    messages: list[Message] | None = None
    prompt: list[Message] | None = None
    chosen: str | None = None
    rejected: str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    chosen_token_ids: list[int] | None = None
    rejected_token_ids: list[int] | None = None

    @property
    def form(self) -> tuple[str, ...] | None:
        """The fields of the row's form, or None if the fields match no form."""
        given = {name for name in FIELDS if getattr(self, name) is not None}
        return next((form for form in FORMS if given == set(form)), None)

    @property
    def conversation(self) -> list[Message]:
        """The messages before the answer; none if the row has token ids."""
        return self.messages[:-1] if self.messages else self.prompt or []

    @property
    def texts(self) -> list[str]:
        """The answers as text; none if the row has token ids."""
        if self.messages:
            return [self.messages[-1]["content"]]
        return [self.chosen, self.rejected] if self.prompt else []

    @property
    def characters(self) -> int:
        return sum(len(message["content"]) for message in self.conversation) + sum(map(len, self.texts))

    @property
    def tokens(self) -> list[list[int]]:
        """The answers as token ids; none if the row has text."""
        if self.prompt_token_ids is None:
            return []
        return [self.token_ids] if self.token_ids else [self.chosen_token_ids, self.rejected_token_ids]


FORMS = (
    ("messages",),
    ("prompt_token_ids", "token_ids"),
    ("prompt", "chosen", "rejected"),
    ("prompt_token_ids", "chosen_token_ids", "rejected_token_ids"),
)
FIELDS = tuple(dict.fromkeys(name for form in FORMS for name in form))


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a file. Raises ValueError if rows are invalid or have different forms."""
    if not path.is_file():
        raise ValueError(f"{path} is no file of demonstrations")
    rows = list(_checked_rows(path))
    if not rows:
        raise ValueError(f"{path} has no demonstration")
    answers = [len(row.texts or row.tokens) for row in rows]
    if len(set(answers)) > 1:
        other = answers.index(3 - answers[0])
        raise ValueError(f"{path}: row {other + 1} has {answers[other]} answer(s), and row 1 {answers[0]}")
    return rows


def _checked_rows(path: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(Row)
    content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    if content.lstrip()[:1] == b"[":
        raise ValueError(f"{path} is one array: write a JSON object on each line")
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError) as error:
            why = f"{error}; docs/demonstrations.md has the forms"
            raise ValueError(f"{where}: {why}") from None  # the launcher would show the cause alone
        if row.form is None:
            raise ValueError(f"{where}: it has none of the forms {' | '.join(map(', '.join, FORMS))}")
        if why := _unfit(row):
            raise ValueError(f"{where}: {why}")
        yield row


def _unfit(row: Row) -> str | None:
    """Returns the reason why a row that has one of the forms is invalid, or None."""
    messages = [*(row.messages or []), *(row.prompt or [])]
    if not all(message.keys() >= {"role", "content"} for message in messages):
        return "a message has a role and a content"
    if row.messages is not None and (len(row.messages) < 2 or row.messages[-1]["role"] != "assistant"):
        return "messages are a conversation, and the last one is the assistant's answer"
    if row.prompt is not None and not row.prompt:
        return "prompt has no message"
    for name in FIELDS:
        value = getattr(row, name)
        if name.endswith("token_ids") and value is not None and not (value and min(value) >= 0):
            return f"{name} must be token ids, one at least"
    answers = [*row.texts, *row.tokens]
    if not all(answers):
        return "an answer is empty"
    if len(answers) == 2 and answers[0] == answers[1]:
        return "both answers are the same, so neither can be preferred"
    return None
