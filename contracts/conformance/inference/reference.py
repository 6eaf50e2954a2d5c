"""Computes reference results with a Hugging Face model on the CPU, in float32 and without a cache.

Also makes the weights to publish. Different seeds change every tensor by about its own size. Distributions
are sharp enough to reveal wrong weights, and almost never end a sequence.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
)

from contracts.causal_model import load_causal
from contracts.conformance.inference.model_directory import end_of_sequence, tokenizer_of

Weights = Mapping[str, torch.Tensor]
LOGIT_SPREAD = 4.0  # standard deviation of the logits of one position
KEPT = 6  # number of cached sets of weights, each as large as the model


class Reference:
    """A Hugging Face model that computes the results of a correct server.

    Raises OSError or ValueError if `path` is not a model directory that Hugging Face can load.
    """

    def __init__(self, path: str, trust_remote_code: bool = False):
        if not Path(path, "config.json").is_file():
            raise ValueError(f"{path} is not a Hugging Face model directory: it has no config.json")
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        self.context: int = config.get_text_config().max_position_embeddings
        model, _ = load_causal(path, dtype=torch.float32, trust_remote_code=trust_remote_code)
        self.model = model.eval()
        self.tokenizer = tokenizer = tokenizer_of(path, trust_remote_code)
        self.ends = end_of_sequence(path, config, tokenizer)
        self.chats = tokenizer is None or tokenizer.chat_template is not None
        known = range(len(tokenizer) if tokenizer else config.get_text_config().vocab_size)
        special = {*self.ends, *(tokenizer.all_special_ids if tokenizer else ())}
        self.ordinary = [i for i in known if i not in special]  # ids that any server accepts in a prompt
        # A tied parameter has one name here, unlike in the state dict.
        self._base = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.tied = self._tied()
        self._made: dict[int, Weights] = {}  # sets of weights by seed, oldest first

    def _tied(self) -> dict[str, str]:
        """Returns a map from each tied name to the name under which its weight is sent."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        every = self.model.named_parameters(remove_duplicate=False)
        return {name: names[id(p)] for name, p in every if names[id(p)] != name}

    # --- weights ----------------------------------------------------------------------------------

    def weights(self, seed: int) -> Weights:
        """Returns float32 tensors by name, in the model's order, tied ones once. Must not be modified."""
        if seed not in self._made:
            self._made[seed] = self._make(seed)
            if len(self._made) > KEPT:
                del self._made[next(iter(self._made))]
        return self._made[seed]

    def _make(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            size = tensor.square().mean().sqrt()
            step = 0.5 * size.clamp(min=0.05) if tensor.dim() > 1 else 0.3 * size.clamp(min=1.0)
            return tensor + step * torch.randn(tensor.shape, generator=generator)

        weights = {name: changed(tensor) for name, tensor in self._base.items()}
        return self._sharpened(self._without_end(weights))

    def _head(self) -> list[str]:
        """Returns the names of the output head's matrix and, if it has one, bias."""
        head = self.model.get_output_embeddings()
        names = {id(p): name for name, p in self.model.named_parameters()}
        return [names[id(p)] for p in head.parameters()]

    def _without_end(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        matrix, *bias = self._head()
        weights[matrix][self.ends] = 0.0
        for name in bias:
            weights[name][self.ends] = weights[name].min() - 4
        return weights

    def _sharpened(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Scales the output head so that logits have LOGIT_SPREAD.

        Does so twice, because a tied head also changes the model's input.
        """
        matrix = self._head()[0]
        for _ in range(2):
            spread = self._logits(weights, self.prompt(32)).std(-1).mean()
            weights[matrix] *= LOGIT_SPREAD / spread
        return weights

    def exchanged(self, weights: Weights, pairs: Mapping[int, int]) -> dict[str, torch.Tensor]:
        """Exchanges the vocabulary rows of each pair of ids.

        After a prompt without these ids, the new model samples one of a pair where the old one samples the
        other.
        """
        ones = list(pairs)
        others = list(pairs.values())
        changed = dict(weights)
        for name in self.vocabulary():
            changed[name] = weights[name].clone()
            changed[name][ones + others] = weights[name][others + ones]
        return changed

    def vocabulary(self) -> set[str]:
        """Returns the names of embedding and output head, whose rows are token ids."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        return {*self._head(), names[id(self.model.get_input_embeddings().weight)]}

    # --- prompts and log-probabilities ------------------------------------------------------------

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        """Returns `length` random ids of ordinary tokens."""
        generator = torch.Generator().manual_seed(seed)
        return [self.ordinary[i] for i in torch.randint(len(self.ordinary), (length,), generator=generator)]

    def distribution(
        self, weights: Weights, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0
    ) -> torch.Tensor:
        """Returns [len(ids), vocabulary] log-probabilities, in nats. Temperature 0 scales nothing."""
        logits = self._logits(weights, [*prompt, *ids])[len(prompt) - 1 : -1]
        return (logits / (temperature or 1.0)).log_softmax(-1)

    def logprobs(
        self, weights: Weights, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0
    ) -> torch.Tensor:
        """Returns the [len(ids)] log-probabilities of `ids`, in nats."""
        chosen = torch.tensor(ids, dtype=torch.long)[:, None]
        return self.distribution(weights, prompt, ids, temperature).gather(1, chosen)[:, 0]

    @torch.no_grad()
    def _logits(self, weights: Weights, ids: list[int]) -> torch.Tensor:
        self.load(weights)
        logits: torch.Tensor = self.model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits.float()

    def states(self, weights: Weights, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        """Returns what the output head reads for each of `ids`, `[len(ids), hidden]`."""
        found: list[torch.Tensor] = []
        head = self.model.get_output_embeddings()
        with head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0][0])):
            self._logits(weights, [*prompt, *ids])
        return found[0][len(prompt) - 1 : -1].float()

    def load(self, weights: Weights) -> None:
        """Loads `weights` into the model, in float32."""
        for name, parameter in self.model.named_parameters():
            parameter.data = weights[name].float()
