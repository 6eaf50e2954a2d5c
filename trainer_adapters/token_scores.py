"""Scores the tokens of a pack by a causal language model, without `[T, vocab]` logits.

A backend uses `TokenScorer` as the root module of its engine, so that head and embedding are gathered when
`forward` and its backward use them. This module must not depend on sharding or optimizers.
"""

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from contracts.support.messages import first_line
from contracts.trainer import PackedBatch
from contracts.whole_model import is_quantised
from trainer_adapters.attention import PACKED, Packing
from trainer_adapters.layers.kinds import prepare, unknown_layers, unknown_types
from trainer_adapters.logit_form import logit_form
from trainer_adapters.output_head import HeadScores, JoinedScores, default_chunk
from trainer_adapters.shared_prefixes import SharedPrefixes, rows_of
from trainer_adapters.start_check import Scores, own_scores

QUANTISED = (
    "is quantised (quantization_config): train a bfloat16 copy, which python -m extensions.tools.dequantise "
    "writes of fp8 and mxfp4"
)
NO_LAYERS = "has no list of decoder layers to shard"
LENGTH_DEPENDENT = {"dynamic", "longrope"}  # types of rotary embedding that depend on sequence length


class ValueHead(torch.nn.Linear):
    """A float32 linear layer `[C, hidden]` -> `[C]` that predicts the value of a state, initialised to 0."""

    def __init__(self, hidden: int):
        super().__init__(hidden, 1, dtype=torch.float32)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden.float(), self.weight.float(), self.bias.float()).squeeze(1)


class TokenScorer(torch.nn.Module):
    """A module that scores every token of a batch. `model` must use "packed" attention."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        fp32_head: bool,
        logits_chunk: int | None = None,  # tokens; None: `default_chunk`
        value_head: bool = False,
    ):
        super().__init__()
        check_supported(model)
        prepare(model.get_decoder().layers)
        self.model = model
        head = model.get_output_embeddings()
        self.value_head = ValueHead(head.in_features) if value_head else None
        self.fp32_head = fp32_head
        self.logits_chunk = logits_chunk or default_chunk(head.out_features, head.in_features)
        self._form = logit_form(model.config)
        self._constant_positions = constant_positions(model.config)

    @property
    def layers(self) -> torch.nn.ModuleList:
        return self.model.get_decoder().layers

    def forward(self, batch: PackedBatch, entropy: bool, own: bool = False) -> Scores:
        """Returns log-probabilities, entropies if requested, and values if there is a head, `[T]` float32.

        They are 0 at the first token of a sequence. With `own`, the model's own forward computes them,
        without values. Raises ValueError if a sequence is so long that the pack's rotary embedding changes.
        """
        if own:
            return own_scores(self.model, batch, self.fp32_head)
        self._check_positions(batch)
        shared = SharedPrefixes.of(batch.token_ids, batch.temperature, batch.cu_seqlens)
        token_ids, position_ids, temperature = (
            shared.to_distinct(values) for values in (batch.token_ids, batch.position_ids, batch.temperature)
        )
        decoder = self.model.get_decoder()
        hidden = decoder(
            input_ids=token_ids.unsqueeze(0),
            position_ids=position_ids.unsqueeze(0),
            use_cache=False,
            packing=Packing(batch.cu_seqlens, shared),
        ).last_hidden_state.squeeze(0)  # [U, hidden]

        predicted = (position_ids > 0).nonzero().squeeze(1)  # distinct tokens with one before them
        before = rows_of(hidden, shared.slots[shared.distinct[predicted] - 1])
        logprobs, entropies = self._score(before, token_ids[predicted], temperature[predicted], entropy)
        scores = logprobs, entropies, None
        if self.value_head is not None:
            scores = JoinedScores.apply(logprobs, entropies, self.value_head(before))

        zeros = torch.zeros_like(temperature)
        return tuple(
            None if score is None else shared.to_pack(zeros.index_copy(0, predicted, score))
            for score in scores
        )

    def _check_positions(self, batch: PackedBatch) -> None:
        constant = self._constant_positions
        if constant and len(batch.position_ids) and (longest := int(batch.position_ids.max()) + 1) > constant:
            raise ValueError(
                f"a sequence of {longest} tokens: the rotary embedding of {type(self.model).__name__} "
                f"changes for a whole pack with a sequence longer than {constant}; let prompt and "
                "completions have fewer, or choose a model whose embedding does not depend on length"
            )

    def _score(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores the tokens after these states.

        The head takes part even without tokens. Otherwise ranks would reduce different sets of gradients.
        """
        head = self.model.get_output_embeddings()
        how = self.logits_chunk, entropy, self.fp32_head, self._form.bound
        temperature = temperature / self._form.factor
        return HeadScores.apply(hidden, head.weight, head.bias, token_ids, temperature, *how)


def check_supported(model: PreTrainedModel) -> None:
    """Raises ValueError if the scores of the model would silently be wrong."""
    name = type(model).__name__
    if model.config.get_text_config()._attn_implementation != PACKED:
        raise ValueError(f"{name} must be loaded with attn_implementation={PACKED!r}")
    if not hasattr(model.get_decoder(), "layers"):
        raise ValueError(f"{name} {NO_LAYERS}")
    if unfit := unfit_config(model.config) or unfit_layers(model):
        raise ValueError(f"{name} {unfit}")


def unfit_config(config: PreTrainedConfig) -> str | None:
    """Returns a message if the config's fields show that scores would be wrong, else None."""
    if is_quantised(config.to_dict()):
        return QUANTISED
    if unfit := unknown_types(config):
        return f"has {', '.join(unfit)}: such layers would read across a pack's sequences"
    return None


def unfit_layers(model: PreTrainedModel) -> str | None:
    """Returns a message if decoder layers share parameters or would read across a pack's sequences."""
    layers = model.get_decoder().layers
    every = [parameter for layer in layers for parameter in layer.parameters()]
    if len(every) != len(set(every)):
        return "has layers that share parameters, which cannot be sharded layer by layer"
    found = unknown_layers(model.config, layers)
    return found and f"has layers of class {found}, which would read across a pack's sequences"


def unfit_model(config: PreTrainedConfig) -> str | None:
    """Returns a message if the model, built on the meta device, cannot be scored, else None."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=PACKED)
    except Exception as error:  # a model class may raise any error
        if error.args == (PACKED,):
            return "has attention layers of its own, which cannot run packed"
        return f"cannot be made from config.json: {first_line(error)}"
    return unfit_layers(model) if hasattr(model.get_decoder(), "layers") else NO_LAYERS


def constant_positions(config: PreTrainedConfig) -> int | None:
    """Returns the length up to which rotary frequencies are constant, or None if they always are.

    For "longrope" and "dynamic", transformers chooses them by the longest sequence of a batch.
    """
    text = config.get_text_config()
    found = getattr(text, "rope_parameters", None) or {}
    kinds = found.values() if all(isinstance(kind, dict) for kind in found.values()) else [found]
    limits = [
        kind.get("original_max_position_embeddings") or text.max_position_embeddings
        for kind in kinds
        if kind.get("rope_type") in LENGTH_DEPENDENT
    ]
    return min(limits, default=None)
