"""Finds the model: a directory, a repository on the Hugging Face Hub, or a model that the run makes.

A plan needs neither the model nor a network: `model.shape` describes a model that is not here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Literal, NamedTuple

from contracts.model_shape import ModelShape
from contracts.support.messages import one_line
from contracts.whole_model import fault_in_files, fault_of_kind
from pipelinerl.components import build_model_maker, checked_type, instantiate, named_class
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.components import checked
from pipelinerl.model_maker import ModelMaker

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]  # of a repository
SHAPE = {  # by field of ModelShape, the key in a Hugging Face configuration
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
    "context": "max_position_embeddings",
    "tied": "tie_word_embeddings",
}
LONGEST_REASON = 300  # characters of a library's message
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # of models with a mixture of experts


class Model(NamedTuple):
    path: str  # the directory, or the repository id of a model "on the hub"
    state: Literal["here", "to be made", "on the hub", "not needed"]
    shape: ModelShape | None = None  # None if it is not known
    hub: str | None = None  # the repository id


def find_model(config: RunConfig) -> Model:
    """Returns the model. Uses no network. Raises PlanError."""
    name = config.model.path
    if config.model.made_by:
        named_class("model.made_by", config.model.made_by, ModelMaker)
    maker = checked("model.made_by", lambda: build_model_maker(config))
    if not (name or maker):
        raise PlanError("there is no model: set model.path, or choose one that is made, like model=sums")
    made = maker and checked_type("model.made_by", config.model.made_by, "directory", maker.directory, Path)
    made = made and made.absolute()
    directory = Path(name).absolute() if name else made
    if not needs_model(config):
        return Model(str(directory), "not needed")
    if directory.is_dir() and (why := fault_of_kind(directory)):
        raise PlanError(f"model.path={name or directory} is no whole model: {why}")
    if (directory / "config.json").is_file():
        return model_in(directory)
    given = config.model.shape if config.plan else None
    if directory == made:
        return Model(str(directory), "to be made", given)
    if directory.is_file():
        raise PlanError(f"model.path={name} is a file; set it to the directory of a Hugging Face model")
    if directory.exists() or not HUB_NAME.fullmatch(name):
        raise PlanError(
            f"model.path={name} is not a Hugging Face model directory (no config.json there), and no "
            "org/name of the hub"
        )
    if cached := _from_hub(name, local_files_only=True):
        return model_in(Path(cached), name)
    return Model(name, "on the hub", given)


def needs_model(config: RunConfig) -> bool:
    """Returns True if the servers or the trainer load `model.path`; the scripted ones do not."""
    return config.inference.model is None or instantiate(config.trainer).needs_model


def model_in(directory: Path, hub: str | None = None) -> Model:
    return Model(str(directory), "here", _shape_of(directory), hub)


def make_model(config: RunConfig) -> Model:
    """Calls the configured maker. Raises PlanError if it leaves no whole model in its directory."""
    maker = build_model_maker(config)
    maker.make()
    directory = maker.directory.absolute()
    whole = (directory / "config.json").is_file()
    if why := fault_in_files(directory) if whole else "no config.json is there":
        raise PlanError(
            f"model.made_by._target_={config.model.made_by.target}: make() left no whole model in "
            f"{directory}: {why}"
        )
    return model_in(directory)


def fetch_model(name: str) -> Model:
    """Downloads the repository, or the rest of it. Raises PlanError."""
    if directory := _from_hub(name, local_files_only=False):
        return model_in(Path(directory), name)
    raise PlanError(
        f"model.path={name} is no directory here, and the hub could not be reached: run once with a network "
        "and the same HF_HOME, or set model.path to a local directory"
    )


def _from_hub(name: str, local_files_only: bool) -> str | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return snapshot_download(name, allow_patterns=FILES, local_files_only=local_files_only)
    except LocalEntryNotFoundError:
        return None
    except HfHubHTTPError as error:
        raise PlanError(f"model.path={name}: the hub answers: {one_line(error)}") from error


def _shape_of(directory: Path) -> ModelShape | None:
    """Returns None if ModelShape does not describe the architecture."""
    config = _config_in(directory).get_text_config()
    if not all(hasattr(config, name) for name in SHAPE.values()) or any(hasattr(config, n) for n in EXPERTS):
        return None
    known = {field: getattr(config, name) for field, name in SHAPE.items()}
    try:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return ModelShape(**known, head_dim=head_dim)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise PlanError(f"{directory / 'config.json'} describes no model: {one_line(error)}") from error


def _config_in(directory: Path) -> PretrainedConfig:
    from transformers import AutoConfig

    file = directory / "config.json"
    try:
        written = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PlanError(f"{file} cannot be read: {one_line(error)}; copy the model again") from error
    if not isinstance(written, dict) or "model_type" not in written:
        raise PlanError(f"{file} is not the configuration of a Hugging Face model: it names no model_type")
    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # any error of the model's class
        raise PlanError(f"{file}: {shorten(str(error), LONGEST_REASON)}") from error
