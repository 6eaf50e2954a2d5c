"""The scripted engine's model as a Hugging Face model with custom code: the kit's reference for it.

It is an independent implementation of the formula in `inference_adapters.scripted`. A model directory gets a
copy of this file as its code.
"""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class ScriptedConfig(PretrainedConfig):
    model_type = "scripted"
    vocab_size = 97
    hidden_size = 8
    max_position_embeddings = 4096
    eos_token_id = 0
    tie_word_embeddings = True


class Decoder(nn.Module):
    def __init__(self, config: ScriptedConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([nn.Linear(config.hidden_size, config.hidden_size)])
        self.norm = nn.ParameterDict({"weight": torch.ones(config.hidden_size)})

    def forward(
        self, input_ids: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the normed states of all tokens, and the state after the last one: the model's cache."""
        inputs = self.embed_tokens(input_ids)
        if state is None:
            state = torch.zeros_like(inputs[:, 0])
        states = []
        for position in range(inputs.shape[1]):
            state = torch.tanh(self.layers[0](state) + inputs[:, position])
            states.append(state)
        return torch.stack(states, dim=1) * self.norm["weight"], state


class ScriptedForCausalLM(PreTrainedModel):
    config_class = ScriptedConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: ScriptedConfig):
        super().__init__(config)
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(
        self, input_ids: torch.Tensor, past_key_values: torch.Tensor | None = None, **options: object
    ) -> CausalLMOutputWithPast:
        hidden, state = self.model(input_ids, past_key_values)
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), past_key_values=state)
