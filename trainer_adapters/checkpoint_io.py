"""Loads Hugging Face checkpoints in float32, scatters them to all ranks, and saves them with tokenizers."""

import shutil
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from torch.distributed.tensor import distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from trainer_adapters.attention import PACKED

TOKENIZER_FILES = (
    "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "*.model", "*.tiktoken",
)  # fmt: skip


def load_model(path: str, rank: int) -> PreTrainedModel:
    """Returns the model, with its weights on rank 0 only.

    On other ranks the parameters are allocated but not written, so they use no memory until `scatter_weights`
    fills the shards.
    """
    options = {"dtype": torch.float32, "attn_implementation": PACKED}
    try:
        if rank == 0:
            return AutoModelForCausalLM.from_pretrained(path, **options)
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), **options)
    except KeyError as error:
        if error.args != (PACKED,):
            raise
        raise ValueError(
            f"the model in {path} has attention layers of its own, which cannot run packed"
        ) from error
    model.tie_weights()
    return model.eval()


@torch.no_grad()
def scatter_weights(model: torch.nn.Module, full: dict[str, torch.Tensor]) -> None:
    """Fills every rank's shards from `full`, which only rank 0 needs to hold."""
    for name, parameter in model.named_parameters():
        local = parameter.to_local()
        whole = full[name].to(local.device) if full else local.new_empty(parameter.shape)
        shards = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=0)
        local.copy_(shards.to_local())


def save_model(model: PreTrainedModel, weights: dict[str, torch.Tensor], directory: Path) -> None:
    """Writes the weights with the model's configuration, and its generation config as it was loaded.

    `save_pretrained` refuses a contradictory generation config, such as a temperature without `do_sample`.
    Many published models have one and can be served, and the end of a training run is too late to refuse.
    """
    as_loaded = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        model.save_pretrained(directory, state_dict=weights)
    finally:
        model.generation_config = as_loaded
    as_loaded.to_json_file(directory / "generation_config.json")


def copy_tokenizer(model_path: str, directory: Path) -> None:
    """Copies the files of a model's tokenizer.

    `AutoTokenizer` may load another class than the saved one, and saving that class would change token ids.
    """
    source = Path(model_path)
    if not source.is_dir():
        source = Path(snapshot_download(model_path, allow_patterns=list(TOKENIZER_FILES)))
    for pattern in TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copy(file, directory)
