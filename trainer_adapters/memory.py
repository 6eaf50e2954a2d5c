"""Estimates the activation memory of a forward and backward pass, in bytes per rank, from the model's shape.

It counts the tensors that autograd saves for a decoder layer of RMSNorm, flash attention and a gated
feed-forward layer, without temporary memory of kernels. A test compares it with measurements.
"""

from contracts.model_shape import ModelShape
from trainer_adapters.activation_checkpointing import Checkpointing

FLOAT32 = 4
LOGITS_AT_ONCE = 2  # float32 copies of a chunk's logits in each pass; up to two more, see `scoring`


def activations(shape: ModelShape, tokens: int, value_bytes: int, checkpointing: Checkpointing) -> int:
    """Returns the bytes of the decoder's activations for `tokens` tokens.

    Without checkpointing, they are those of all layers. With checkpointing, they are those of one layer, and
    the inputs of all layers. Selective checkpointing adds the results of all products and of attention.
    """
    layer = _saved_by_a_layer(shape, value_bytes)
    if not checkpointing:
        return tokens * shape.layers * layer
    inputs = shape.layers * shape.hidden_size * value_bytes
    if checkpointing is True:
        return tokens * (inputs + layer)
    attended = shape.heads * shape.head_dim
    gated = 2 * shape.intermediate_size
    results = 2 * (attended + shape.kv_heads * shape.head_dim) + gated + 2 * shape.hidden_size
    computed_again = layer - value_bytes * (attended + gated)
    return tokens * (inputs + shape.layers * value_bytes * results + computed_again)


def _saved_by_a_layer(shape: ModelShape, value_bytes: int) -> int:
    """Returns the bytes per token that autograd saves for a layer."""
    attended = shape.heads * shape.head_dim
    keys_and_values = 2 * shape.kv_heads * shape.head_dim
    norms = 2 * (value_bytes + 2 * FLOAT32) * shape.hidden_size  # computed in float32
    attention = 3 * attended + 2 * keys_and_values  # queries before and after rotation, and the result
    return norms + value_bytes * (attention + 4 * shape.intermediate_size)


def scoring(
    shape: ModelShape, chunk: int, tokens: int, value_bytes: int, fp32_head: bool, frozen: bool = False
) -> int:
    """Returns the bytes of the output head: a chunk's logits, all tokens' inputs, and the head's gradient.

    If there is only one chunk, its logits are saved for backward. Half-precision logits exist besides float32
    ones. A head that computes in another dtype than that of its weights has a copy of them. The gradient is
    accumulated in float32, and then rounded to the dtype of the weights. A frozen head has no gradient.
    """
    rounded = value_bytes != FLOAT32
    at_once = LOGITS_AT_ONCE + (tokens <= chunk) + (rounded and not fp32_head)
    logits = at_once * min(chunk, tokens) * shape.vocab_size * FLOAT32
    states = 2 * value_bytes * tokens * shape.hidden_size
    gradient = 0 if frozen else FLOAT32 + rounded * value_bytes
    copies = gradient + rounded * fp32_head * FLOAT32
    return logits + states + copies * shape.embedding
