"""The second half of T4: `export` writes a Hugging Face checkpoint, tokenizer included."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from contracts.causal_model import causal_config
from contracts.conformance.verdicts import GuaranteeError
from contracts.support.messages import first_line

TEXT = "All tokens arrive: 12 + 30 = 42."
MESSAGES = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "42"}]
NOT_COMPARED = {
    "dtype",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
    "use_cache",
}  # of config.json
DOING = "export(directory), one optimizer step, export(directory) again, then list(worker.gather_weights())"


def check_export(
    model: str, directory: Path, loaded: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]
) -> None:
    """Checks that `directory` holds `weights`, in the dtype it was written in, and `model`'s tokenizer.

    `loaded` are the weights before the step that preceded the export. Raises GuaranteeError otherwise.
    """
    if all(torch.equal(tensor, loaded[name]) for name, tensor in weights.items()):
        raise GuaranteeError(
            "an optimizer step changed no weight", "what is gathered after a step is new", DOING
        )
    exported = load_export(directory)
    own = dict(exported.named_parameters(remove_duplicate=False))
    for name, tensor in weights.items():
        if name not in own:
            raise GuaranteeError(f"the export has no {name}", "every weight that is gathered", DOING)
        if not _equal(own[name], tensor):
            old = _equal(own[name], loaded[name])
            matter = "what was loaded: the step is not in it" if old else "not what was gathered"
            raise GuaranteeError(f"{name} of the export is {matter}", "the weights after the step", DOING)
    _check_tokenizer(AutoTokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(model))
    _check_config(Path(model), directory)


def load_export(directory: Path) -> Any:
    """Returns the model of an export. Raises GuaranteeError unless model and tokenizer load."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", output_loading_info=True)
        AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise GuaranteeError(
            f"the export does not load: {first_line(error)}", "model and tokenizer load", DOING
        ) from error
    exported, report = loaded
    if wrong := [f"{kind}: {min(map(str, names))}" for kind, names in report.items() if names]:
        raise GuaranteeError(
            f"the export loads with a warning, {wrong[0]}", "the names and shapes of the model", DOING
        )
    return exported


def _equal(exported: torch.Tensor, gathered: torch.Tensor) -> bool:
    """Returns True if both are equal in the narrower of their dtypes, to which one of them is rounded."""
    narrower = min(exported.dtype, gathered.dtype, key=lambda dtype: dtype.itemsize)
    return torch.equal(exported.to(narrower), gathered.to(narrower))


def _check_tokenizer(found: Any, right: Any) -> None:
    if found(TEXT).input_ids != right(TEXT).input_ids:
        raise GuaranteeError(
            f"the exported tokenizer reads {TEXT!r} differently", "the model's own tokenizer", DOING
        )
    if found.special_tokens_map != right.special_tokens_map:
        raise GuaranteeError(
            f"the exported tokenizer's special tokens are {found.special_tokens_map}",
            f"{right.special_tokens_map}",
            DOING,
        )
    if right.chat_template is None:
        return
    if found.chat_template is None:
        raise GuaranteeError("the export has no chat template", "the model's own", DOING)
    one, other = (t.apply_chat_template(MESSAGES, tokenize=False) for t in (found, right))
    if one != other:
        raise GuaranteeError(f"the exported chat template gives {one!r}", f"{other!r}", DOING)


def _check_config(model: Path, directory: Path) -> None:
    configs = (causal_config(str(path)).get_text_config() for path in (directory, model))
    found, right = (config.to_dict() for config in configs)
    if right["architectures"] is None:  # a text part names none
        right["architectures"] = found.get("architectures")
    for name in sorted(right.keys() - NOT_COMPARED):
        if found.get(name) != right[name]:
            raise GuaranteeError(
                f"config.json of the export has {name}={found.get(name)!r}", f"{right[name]!r}", DOING
            )
    ends, right_ends = (_end_tokens(path) for path in (directory, model))
    if ends != right_ends:
        raise GuaranteeError(
            f"a completion of the export ends at the tokens {ends}",
            f"{right_ends}, as in the model's generation_config.json",
            DOING,
        )


def _end_tokens(directory: Path) -> list[int]:
    """Returns the ids that end a completion on a server."""
    if (directory / GENERATION_CONFIG_NAME).exists():
        ids = GenerationConfig.from_pretrained(directory).eos_token_id
    else:
        ids = AutoConfig.from_pretrained(directory).eos_token_id
    return sorted(ids) if isinstance(ids, list) else [ids]
