"""The reference for `keep`: a forward of new weights over keys and values that older weights have computed.

The keys and values are the cache that the Hugging Face model itself returns. A model with custom code may
have none, or one that cannot continue a sequence. Then `continues` is false.
"""

from collections.abc import Sequence
from typing import Any

import torch

from contracts.conformance.inference.reference import Reference, Weights

Part = tuple[Weights, int]  # weights, and the position up to which they have read the sequence
CLOSE = 1e-3  # nats by which a forward in two parts may differ from a forward in one


class KeptCache:
    """Computes log-probabilities of sequences that several weights have read in turn."""

    def __init__(self, reference: Reference):
        self.reference = reference
        self.continues = self._continues()

    def _continues(self) -> bool:
        """Returns whether the model continues its own cache exactly."""
        weights = self.reference.weights(1)
        prompt = self.reference.prompt(24)
        plain = self.reference.logprobs(weights, prompt[:1], prompt[1:])
        try:
            parts = self.logprobs(
                [(weights, 9), (weights, 17), (weights, len(prompt))], prompt[:1], prompt[1:]
            )
        except Exception:  # custom code of the model may raise anything
            return False
        return parts.shape == plain.shape and bool((parts - plain).abs().max() < CLOSE)

    @torch.no_grad()
    def logprobs(self, parts: Sequence[Part], prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        """Returns the `[len(ids)]` log-probabilities of `ids`, in nats.

        Each part continues where the previous one ended, with its keys and values. The last part ends with
        the sequence.
        """
        tokens = [*prompt, *ids]
        logits = []
        cache: Any = None
        start = 0
        for weights, end in parts:
            if end <= start:
                continue
            self.reference.load(weights)
            read = torch.tensor([tokens[start:end]])
            output = self.reference.model(read, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            if cache is None:
                raise ValueError("the model returns no keys and values")
            logits.append(output.logits[0].float())
            start = end
        log_p = torch.cat(logits)[len(prompt) - 1 : -1].log_softmax(-1)
        return log_p.gather(1, torch.tensor(ids, dtype=torch.long)[:, None])[:, 0]
