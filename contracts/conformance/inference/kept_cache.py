"""The reference for `keep`: a forward of new weights over keys and values computed by older weights.

Keys and values are the cache of the Hugging Face model. A model with custom code may have none, or one that
cannot continue a sequence.
"""

from collections.abc import Sequence
from typing import Any

import torch

from contracts.conformance.inference.reference import Reference, Weights

Part = tuple[Weights, int]  # (weights, position up to which they have read the sequence)
CLOSE = 1e-3  # nats by which a forward in several parts may differ from a forward in one


class KeptCache:
    """Computes log-probabilities of sequences that several weights have read in turn.

    continues: True if the model continues its cache exactly. Otherwise, `logprobs` must not be used.
    """

    def __init__(self, reference: Reference):
        self.reference = reference
        self.continues = self._continues()

    def _continues(self) -> bool:
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
        """Returns the [len(ids)] log-probabilities of `ids`, in nats.

        Each part continues from the keys and values of the previous one.
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
