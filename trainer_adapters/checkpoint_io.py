"""Loads Hugging Face checkpoints in float32, scatters them to all ranks, and exports them with tokenizers."""

import json
import logging
import shutil
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict, snapshot_download
from torch.distributed.tensor import distribute_tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from contracts.causal_model import causal_config, load_causal
from contracts.support.files import is_disk_full
from contracts.support.messages import one_line
from contracts.whole_model import IncompleteModelError, fault_in_files, fault_of_loading
from trainer_adapters.attention import PACKED
from trainer_adapters.token_scores import unfit_config, unfit_model

log = logging.getLogger(__name__)
TOKENIZER_FILES = (
    "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "additional_chat_templates", "*.model", "*.tiktoken",
)  # fmt: skip


def load_model(path: str, rank: int) -> PreTrainedModel:
    """Returns the model. Only rank 0 has its weights.

    On other ranks the parameters are allocated but not written, so they use no physical memory until
    `scatter_weights` fills the shards. Raises ValueError for an incomplete, quantised or unsupported model.
    """
    config = causal_config(path)
    if unfit := unfit_config(config) or unfit_model(config):
        raise ValueError(f"{config.model_type} in {path} {unfit}")
    options = {"dtype": torch.float32, "attn_implementation": PACKED}
    if rank == 0:
        return _whole_model(path, options)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, **options)
    model.tie_weights()
    return model.eval()


def _whole_model(path: str, options: dict[str, object]) -> PreTrainedModel:
    directory = Path(path)  # `path` may also be a repository id of the Hugging Face Hub
    if why := fault_in_files(directory) if directory.is_dir() else None:
        raise IncompleteModelError(f"the model in {path} is not whole: {why}")
    model, report = load_causal(path, ignore_mismatched_sizes=True, **options)
    if why := fault_of_loading(model, report):
        raise IncompleteModelError(f"the model in {path} is not whole: {why}")
    return model


@torch.no_grad()
def scatter_weights(model: torch.nn.Module, full: dict[str, torch.Tensor]) -> None:
    """Fills every rank's shards from `full`, which may be empty on ranks other than 0."""
    for name, parameter in model.named_parameters():
        local = parameter.to_local()
        whole = full[name].to(local.device) if full else local.new_empty(parameter.shape)
        shards = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=0)
        local.copy_(shards.to_local())


def save_model(
    model: PreTrainedModel, weights: dict[str, torch.Tensor], source: str, directory: Path
) -> None:
    """Writes the weights, the model's configuration, and its generation config as loaded.

    `save_pretrained` refuses contradictory configurations, such as a temperature without `do_sample`, which
    many published models have. An export at the end of training must not fail for that. So the weights are
    always written, and a configuration that cannot be written is copied from `source`, with a warning.
    """
    as_loaded = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        model.save_pretrained(directory, state_dict=dict(weights))
    except Exception as error:
        if isinstance(error, OSError) or is_disk_full(error):
            raise
        log.warning("the export has config.json of %s: %s", source, one_line(error))
        save_torch_state_dict(weights, directory)
        _copy(Path(source) / "config.json", directory)
    finally:
        model.generation_config = as_loaded
    try:
        as_loaded.to_json_file(directory / "generation_config.json")
    except (TypeError, ValueError) as error:
        log.warning("the export has generation_config.json of %s: %s", source, one_line(error))
        _copy(Path(source) / "generation_config.json", directory)


def copy_tokenizer(model_path: str, directory: Path) -> None:
    """Copies the files of a model's tokenizer. Logs a warning for each file that cannot be copied.

    Loading and saving would not do: `AutoTokenizer` may load another class, whose files change token ids.
    """
    source = Path(model_path)
    try:
        if not source.is_dir():
            source = Path(snapshot_download(model_path, allow_patterns=list(TOKENIZER_FILES)))
    except Exception as error:  # network errors, or a directory that was deleted
        log.warning("the export has no tokenizer, because %s is not there: %s", model_path, one_line(error))
        return
    for pattern in TOKENIZER_FILES:
        for file in source.glob(pattern):
            _copy(file, directory)
    try:
        _name_tokenizer_class(source, directory)
    except Exception as error:  # of the tokenizer's class, or a file that is missing
        if is_disk_full(error):
            raise
        log.warning("the export's tokenizer may be loaded as another class: %s", one_line(error))


def _name_tokenizer_class(source: Path, directory: Path) -> None:
    """Names the tokenizer's class, which `AutoTokenizer` may otherwise choose by a text part's own type."""
    types = [json.loads((each / "config.json").read_bytes())["model_type"] for each in (source, directory)]
    file = directory / "tokenizer_config.json"
    if types[0] == types[1] or not file.is_file():
        return
    tokenizer = AutoTokenizer.from_pretrained(source)
    if tokenizer.is_fast:  # others read files that an export does not have
        named = json.loads(file.read_bytes()) | {"tokenizer_class": type(tokenizer).__name__}
        file.write_text(json.dumps(named, indent=2, ensure_ascii=False))


def _copy(file: Path, directory: Path) -> None:
    """Copies a file, or a directory of templates. Raises only if the disk is full."""
    try:
        if file.is_dir():
            shutil.copytree(file, directory / file.name, dirs_exist_ok=True)
        else:
            shutil.copy(file, directory)
    except (OSError, shutil.Error) as error:
        if is_disk_full(error):
            raise
        log.warning("the export lacks %s, which cannot be copied: %s", file, one_line(error))
