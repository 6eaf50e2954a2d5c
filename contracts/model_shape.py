"""The sizes of a decoder-only language model. Memory is estimated from them before the model is loaded."""

from pydantic import BaseModel, ConfigDict, Field


class ModelShape(BaseModel):
    """The sizes in a Hugging Face `config.json`, for models with gated feed-forward layers such as Qwen2."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int = Field(gt=0, description="num_hidden_layers")
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    heads: int = Field(gt=0, description="num_attention_heads")
    kv_heads: int = Field(gt=0, description="num_key_value_heads")
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    context: int = Field(gt=0, description="max_position_embeddings")
    tied: bool = Field(description="tie_word_embeddings")

    @property
    def embedding(self) -> int:
        """The number of parameters of the embedding, and of an untied output head."""
        return self.vocab_size * self.hidden_size

    @property
    def layer(self) -> int:
        """The number of parameters of one decoder layer, without biases."""
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + (1 if self.tied else 2) * self.embedding + self.hidden_size

    def kv_bytes(self, value_bytes: int) -> int:
        """Returns the KV cache's bytes per token, over all layers, with `value_bytes` per number."""
        return 2 * self.layers * self.kv_heads * self.head_dim * value_bytes
