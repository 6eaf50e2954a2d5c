"""Reads from a model's config what the model does to its logits between the head and the softmax."""

from typing import NamedTuple

from transformers import PreTrainedConfig

MULTIPLIED = ("logit_scale", "lm_head_multiplier")  # fields whose value multiplies the logits
DIVIDED = ("logits_scaling",)  # fields whose value divides them


class LogitForm(NamedTuple):
    """The logits of a model are f x, or f c tanh(x / c), for the product x of states and head."""

    factor: float = 1.0  # f; scores divide the temperature by it
    bound: float | None = None  # c


def logit_form(config: PreTrainedConfig) -> LogitForm:
    """Returns the form. The start check finds a model that does something else."""
    text = config.get_text_config()
    factor = 1.0
    for name in MULTIPLIED:
        factor *= getattr(text, name, None) or 1.0
    for name in DIVIDED:
        factor /= getattr(text, name, None) or 1.0
    if text.model_type == "hyperclovax":  # multiplies by `logits_scaling`
        factor = 1 / factor
    bound = getattr(text, "final_logit_softcapping", None)
    return LogitForm(factor, bound and bound / factor)
