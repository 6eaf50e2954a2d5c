"""Estimates the bytes that a forward and backward pass holds on a rank's device, from the model's shape.

It counts the tensors that PyTorch's autograd keeps for a decoder layer of RMSNorm, attention by a flash
kernel, and a gated feed-forward. A test compares it with measurements. Temporary memory of kernels is not
included.
"""

from contracts.model_shape import ModelShape
from trainer_adapters.activation_checkpointing import Checkpointing

FLOAT32 = 4
LOGITS_AT_ONCE = 2  # float32 copies of a chunk's logits, in each pass; two more in some cases


def activations(shape: ModelShape, tokens: int, value_bytes: int, checkpointing: Checkpointing) -> int:
    """Returns the bytes of the decoder for `tokens`.

    Without checkpointing, all layers count. With checkpointing, one layer counts, and the inputs of all
    layers. Selective checkpointing also keeps the results of every layer's products and attention.
    """
    layer = _kept_by_a_layer(shape, value_bytes)
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


def _kept_by_a_layer(shape: ModelShape, value_bytes: int) -> int:
    """Returns the bytes that a layer keeps for one token."""
    attended = shape.heads * shape.head_dim
    keys_and_values = 2 * shape.kv_heads * shape.head_dim
    norms = 2 * (value_bytes + 2 * FLOAT32) * shape.hidden_size  # they compute in float32
    attention = 3 * attended + 2 * keys_and_values  # queries before and after their rotation, and the result
    return norms + value_bytes * (attention + 4 * shape.intermediate_size)


def scoring(
    shape: ModelShape, chunk: int, tokens: int, value_bytes: int, fp32_head: bool, frozen: bool = False
) -> int:
    """Returns the bytes of the output head: a chunk's logits, all tokens' inputs, and the head's gradient.

    Logits of a single chunk are kept for backward. Logits in half precision exist in addition to float32
    ones. A head that computes in another dtype than its weights has a copy of these. The gradient is summed
    in float32, and then rounded to the dtype of the weights. A frozen head has none.
    """
    rounded = value_bytes != FLOAT32
    at_once = LOGITS_AT_ONCE + (tokens <= chunk) + (rounded and not fp32_head)
    logits = at_once * min(chunk, tokens) * shape.vocab_size * FLOAT32
    states = 2 * value_bytes * tokens * shape.hidden_size
    gradient = 0 if frozen else FLOAT32 + rounded * value_bytes
    copies = gradient + rounded * fp32_head * FLOAT32
    return logits + states + copies * shape.embedding
