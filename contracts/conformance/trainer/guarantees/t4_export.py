"""The second half of T4: `export` writes a Hugging Face checkpoint, tokenizer included."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.conformance.verdicts import GuaranteeError
from contracts.support.messages import first_line

TEXT = "All tokens arrive: 12 + 30 = 42."
DOING = "one optimizer step, list(worker.gather_weights()), then worker.export(directory)"


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
    try:
        exported = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise GuaranteeError(
            f"the export does not load: {first_line(error)}", "model and tokenizer load", DOING
        ) from error
    own = dict(exported.named_parameters(remove_duplicate=False))
    for name, tensor in weights.items():
        if name not in own:
            raise GuaranteeError(f"the export has no {name}", "every weight that is gathered", DOING)
        if not torch.equal(own[name], tensor.to(own[name].dtype)):
            old = torch.equal(own[name], loaded[name].to(own[name].dtype))
            matter = "what was loaded: the step is not in it" if old else "not what was gathered"
            raise GuaranteeError(f"{name} of the export is {matter}", "the weights after the step", DOING)
    if tokenizer(TEXT).input_ids != AutoTokenizer.from_pretrained(model)(TEXT).input_ids:
        raise GuaranteeError(
            f"the exported tokenizer reads {TEXT!r} differently", "the model's own tokenizer", DOING
        )
