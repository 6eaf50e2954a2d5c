"""The other half of T4: `export` writes a Hugging Face checkpoint, tokenizer included."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.conformance.verdicts import Broken

TEXT = "All tokens arrive: 12 + 30 = 42."
DOING = "worker.export(directory) right after init_worker"


def check_export(model: str, directory: Path, weights: dict[str, torch.Tensor]) -> None:
    """Raises Broken unless `directory` holds `weights`, in the dtype it was written in, and `model`'s
    tokenizer."""
    try:
        exported = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise Broken(f"the export does not load: {line}", "model and tokenizer load", DOING) from error
    own = dict(exported.named_parameters(remove_duplicate=False))
    for name, tensor in weights.items():
        if name not in own or not torch.equal(own[name], tensor.to(own[name].dtype)):
            raise Broken(f"{name} of the export is not what was gathered", "equal weights", DOING)
    if tokenizer(TEXT).input_ids != AutoTokenizer.from_pretrained(model)(TEXT).input_ids:
        raise Broken(f"the exported tokenizer reads {TEXT!r} differently", "the model's own tokenizer", DOING)
