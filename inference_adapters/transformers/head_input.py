"""What a model's output head reads in a forward pass: the states to which commitments are made."""

from threading import local

from torch import Tensor, nn
from transformers import PreTrainedModel


class HeadInput:
    """Keeps the input of the output head."""

    def __init__(self, model: PreTrainedModel):
        self._of_thread = local()
        model.get_output_embeddings().register_forward_pre_hook(self._keep)

    @property
    def states(self) -> Tensor:
        """The input, `[B, T, H]`, of the last pass of the calling thread."""
        return self._of_thread.states

    def _keep(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._of_thread.states = inputs[0]
