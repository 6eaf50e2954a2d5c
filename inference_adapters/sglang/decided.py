"""Which models the server refuses: the engine asks, and so does a plan."""

from contracts.causal_model import is_text_part


def check_model(model: str) -> None:
    """Raises ValueError, with a one-line message, for a model of which SGLang takes no update."""
    if is_text_part(model):
        raise ValueError(
            f"{model} has pictures, and SGLang takes no update of its text part: use inference=vllm"
        )
