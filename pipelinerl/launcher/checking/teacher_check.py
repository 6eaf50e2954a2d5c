"""Checks the model of its own that a reference server may serve: a teacher has the run's vocabulary."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.model_files import check_files
from pipelinerl.launcher.checking.model_source import LONGEST_REASON

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "reference.arguments.model"


def with_absolute_teacher(config: RunConfig) -> RunConfig:
    """Returns the configuration with the teacher's directory that the links lead to at the start."""
    if config.reference is None or "model" not in config.reference.arguments:
        return config
    name = Path(str(config.reference.arguments["model"]))
    if not name.is_dir():
        return config
    arguments = config.reference.arguments | {"model": str(name.resolve())}
    reference = config.reference.model_copy(update={"arguments": arguments})
    return config.model_copy(update={"reference": reference})


def check_teacher(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises PlanError for a teacher that is not there, or has other tokens than `tokenizer`, the run's."""
    if config.reference is None or "model" not in config.reference.arguments:
        return
    from transformers import AutoTokenizer

    name = str(config.reference.arguments["model"])
    if not (Path(name) / "config.json").is_file():
        raise PlanError(f"{KEY}={name} is not a Hugging Face model directory: it has no config.json")
    check_files(Path(name), KEY)
    try:
        vocabulary = AutoTokenizer.from_pretrained(name, local_files_only=True).get_vocab()
    except Exception as error:  # of whatever library reads this kind of tokenizer
        why = shorten(str(error), LONGEST_REASON)
        raise PlanError(f"{KEY}={name} has no usable tokenizer: {why}") from error
    if vocabulary != tokenizer.get_vocab():
        raise PlanError(
            f"{KEY}={name} has another vocabulary than model.path={config.model.path}: a teacher scores the "
            "ids that were sampled, so both need the same tokenizer"
        )
