"""Checks that a directory has a whole model, before anything is loaded: each refusal is one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from contracts.support.messages import one_line
from contracts.whole_model import fault_in_files, fault_of_loading, fault_of_ties, is_quantised
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.model_source import LONGEST_REASON

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNKNOWN_CLASS = "Unrecognized configuration class"  # begins transformers' list of those that it knows
TOKENIZER = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.*")


def check_files(directory: Path, key: str = "model.path") -> None:
    """Refuses a directory whose files are not the model of its configuration; `key` has named it.

    transformers would make up a tokenizer that is missing, and the tensors that are.
    """
    if why := fault_in_files(directory) or _fault_of_names(directory):
        raise PlanError(f"{key}={directory} is no whole model: {why}")
    if not any(any(directory.glob(pattern)) for pattern in TOKENIZER):
        raise PlanError(f"{key}={directory} has no tokenizer (none of {', '.join(TOKENIZER)})")


def check_vocabulary(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer with ids that the model has no embedding for.

    Added tokens do not count, because many models publish some that no text has. The end token does.
    """
    from transformers import AutoConfig

    size = AutoConfig.from_pretrained(directory, local_files_only=True).get_text_config().vocab_size
    unused = tokenizer.get_added_vocab().keys() - {tokenizer.eos_token}
    beyond = [(i, token) for token, i in tokenizer.get_vocab().items() if i >= size and token not in unused]
    if beyond:
        number, token = min(beyond)
        raise PlanError(
            f"model.path={directory}: the tokenizer's {token!r} is token {number}, and vocab_size in "
            f"config.json is {size}: its tokenizer is that of another model"
        )


def _fault_of_names(directory: Path) -> str | None:
    """Returns what transformers lacks or does not know. It loads to "meta", without memory for weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {"dtype": torch.float32, "ignore_mismatched_sizes": True, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        if is_quantised(config.to_dict()):
            return None  # the trainer says whether it can train it
        with _quiet():
            model, report = AutoModelForCausalLM.from_pretrained(
                directory, device_map="meta", output_loading_info=True, **options
            )
    except Exception as error:  # of whatever class the configuration names
        if UNKNOWN_CLASS in str(error):
            kind = f"{type(config).__name__} ({config.model_type})"
            return f"{kind} is not the class of a causal language model"
        return shorten(f"{type(error).__name__}: {one_line(error)}", LONGEST_REASON)
    return fault_of_loading(model, report) or fault_of_ties(model, directory)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers from printing its table, of which a refusal says the first line."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
