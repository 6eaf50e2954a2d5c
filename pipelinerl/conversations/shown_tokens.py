"""Shows token ids as text, with special tokens marked, because plain text may spell the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from contracts.end_tokens import special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase  # its import takes seconds


def shown(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Returns one line, with special tokens in brackets, and line ends and unprintable characters escaped."""
    special = special_ids(tokenizer)
    parts = []
    for is_special, run in groupby(ids, key=special.__contains__):
        if is_special:
            parts += [f"[{tokenizer.convert_ids_to_tokens(token_id)}]" for token_id in run]
        else:
            text = tokenizer.decode(list(run), clean_up_tokenization_spaces=False)
            parts.append("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
    return "".join(parts)
