"""Tokenization by a Hugging Face model directory, for engines that only handle token ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from contracts.errors import ContractError, ErrorCode
from contracts.support.messages import first_line


class TokenizerMixin:
    """Implements the text methods of a `TokenEngine`."""

    _tokenizer: PreTrainedTokenizerBase

    def encode_chat(
        self, messages: list[dict], tools: list[dict] | None, options: dict[str, Any] | None = None
    ) -> list[int]:
        return self._tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, return_dict=False, **options or {}
        )

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)


def check_model_directory(path: str) -> None:
    """Raises ValueError, with a one-line message, if the directory has no config.json."""
    if not (Path(path) / "config.json").is_file():
        raise ValueError(f"{path} is not a model directory: it has no config.json")


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of the directory `model`.

    Raises ValueError, with a one-line message, if there is none, or it has no chat template.
    """
    check_model_directory(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"{model}: its tokenizer cannot be loaded: {first_line(error)}") from error
    if not tokenizer.chat_template:
        raise ValueError(f"{model}: its tokenizer has no chat template (chat_template.jinja)")
    return tokenizer


def check_ids(token_ids: Sequence[int], vocabulary: int, param: str = "prompt") -> None:
    """Raises ContractError for an id outside the embedding, which would crash the batch's forward pass."""
    if not token_ids or not all(0 <= token_id < vocabulary for token_id in token_ids):
        raise ContractError(
            ErrorCode.INVALID_REQUEST,
            f"token ids must be given, and lie between 0 and {vocabulary - 1}",
            param,
        )
