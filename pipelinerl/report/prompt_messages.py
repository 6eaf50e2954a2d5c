"""Finds the messages of a prompt by the special tokens that name their roles, for the console and the viewer.

Text that spells a special token is no special token, so it begins no message.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from tokenizers import Tokenizer

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "inst": "user",
    "assistant": "assistant",
    "model": "assistant",
    "/inst": "assistant",
    "tool": "tool",
    "ipython": "tool",
    "observation": "tool",
}
MARKS = "<>|｜[]_▁ \n"  # around the name of a role in a special token
HEADER = re.compile(rf"({'|'.join(filter(str.isalpha, ROLES))})(?:\n|\Z)")  # after a special token
Part = tuple[str, bool]  # (text, True if it is a special token)


class Message(NamedTuple):
    role: str
    text: str


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def parts_of(ids: Sequence[int], tokenizer: Tokenizer, special: frozenset[int]) -> Iterator[Part]:
    """Yields the text of tokens; each special token is a part of its own."""
    for is_special, some in groupby(ids, key=special.__contains__):
        for part in [[one] for one in some] if is_special else [list(some)]:
            yield tokenizer.decode(part, skip_special_tokens=False), is_special


def messages_of(parts: Iterable[Part]) -> list[Message]:
    """Returns the messages of a prompt, or none if no special token names a role.

    Text before the first role is the system's. Messages without text are left out, such as the one that the
    model is to write.
    """
    found = [Message(role, text.strip()) for role, text in _by_role(parts)]
    return [message for message in found if message.text] if len(found) > 1 else []


def _by_role(parts: Iterable[Part]) -> Iterator[tuple[str, str]]:
    role = "system"
    text = ""
    may_be_header = False
    is_alone = False  # the part before is a role and nothing else
    for part, is_special in parts:
        header = HEADER.match(part) if may_be_header and not is_special else None
        named = ROLES.get(part.strip(MARKS).lower()) if is_special else header and ROLES[header[1]]
        if named:
            yield role, text
            role = named
            text = part[header.end() :] if header else ""
        elif not is_special:
            text += part
        # The token after a role that stands alone ends the header, so text after it is the message.
        may_be_header = is_special and not named and not is_alone
        is_alone = bool(header) and header.end() == len(part)
    yield role, text


def asked_in(parts: Sequence[Part]) -> str:
    """Returns what a prompt asks: its last message that is not the model's, or else all of its text."""
    asked = [message.text for message in messages_of(parts) if message.role != "assistant"]
    return asked[-1] if asked else "".join(text for text, is_special in parts if not is_special)
