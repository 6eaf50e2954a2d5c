"""Compares a scorer's packed scores with the model's own logits when a trainer starts.

Both run on the same weights, inside the backend's engine, so that sharded parameters are gathered. The
reference is transformers' forward with eager attention, one sequence at a time. A difference means that the
scorer omits a part of the model. Every rank scores the same batch, so a difference between ranks means that
their models differ.

The limits of attention are windows, numbers of chosen keys, and bounds of scores. For the comparison they
are reduced, in the model and in the scorer, so that a short sequence reaches them. A window as long as the
model's context has no effect and is not changed.

In float32 the two differ by the order of sums, by 1e-6 to 1e-4 nats. The tolerance is 1e-3 for every token.
In bfloat16 each layer rounds to 8 bits, and a router may choose another expert for a token. So the mean over
the tokens is compared: with 4 to 48 layers of random weights, rounding gave 0.003 to 0.13 nats. Omitting a
whole part of the model gives more. Between ranks, the tolerance is a tenth.

That comparison does not see state that leaks between neighbours, which gave 0.04 to 0.17 nats. So in bfloat16
a second pack has other tokens in two of the sequences, and the scores of the others must stay.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from contracts.support.messages import one_line
from contracts.trainer import PackedBatch

WINDOW = 16  # tokens
BOUND = 1.0  # of attention scores
# Lengths of the packed sequences. In three, more than half of the tokens are beyond WINDOW.
LENGTHS = (52, 7, 1, 44, 40)
TEMPERATURES = (0.6, 1.0, 1.0, 1.6, 0.6)
ALIKE = 30  # tokens of the common prefix of the first and the last sequence
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}  # nats
BETWEEN_RANKS = 0.1  # share of the tolerance
CHANGED = (1, 3)  # sequences with other tokens in the second pack
# Nats, on average over the other sequences. On a GPU, experts with other numbers of tokens round otherwise.
LEAK = {"cpu": 1e-3, "cuda": 2e-2}
WINDOWS = ("sliding_window", "window_size", "attention_window", "index_topk")
BOUNDS = ("attn_logit_softcapping",)

Scores = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # as in TokenScores, [T] float32 each


def check_batch(model: PreTrainedModel) -> PackedBatch:
    """Returns a pack of several sequences of random tokens, without special ones."""
    special = {value for name, value in _fields(model) if name.endswith(("_token_id", "_token_index"))}
    plain = [token for token in range(min(_vocabulary(model), 50_000)) if token not in special]
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(plain), (sum(LENGTHS),), generator=generator)
    last = sum(LENGTHS[:-1])
    chosen[last : last + ALIKE] = chosen[:ALIKE]
    lengths = torch.tensor(LENGTHS)
    spread = torch.repeat_interleave(lengths)
    zeros = torch.zeros(len(chosen))
    return PackedBatch(
        token_ids=torch.tensor(plain)[chosen],
        position_ids=torch.cat([torch.arange(n) for n in LENGTHS]),
        sequence_ids=spread,
        rollout_ids=spread,
        cu_seqlens=F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32),
        temperature=torch.tensor(TEMPERATURES)[spread],
        loss_mask=torch.ones(len(chosen), dtype=torch.bool),
        loss_weights=zeros,
        behaviour_logprobs=zeros,
        versions=torch.zeros(len(chosen), dtype=torch.int64),
        advantages=zeros,
        reference_logprobs=None,
        num_rollouts=len(LENGTHS),
    )


def _fields(model: PreTrainedModel) -> Iterator[tuple[str, object]]:
    for config in (model.config, model.config.get_text_config()):
        yield from ((name, value) for name, value in vars(config).items() if isinstance(value, int))


def _vocabulary(model: PreTrainedModel) -> int:
    return model.config.get_text_config().vocab_size


def own_scores(model: PreTrainedModel, batch: PackedBatch, fp32_head: bool) -> Scores:
    """Returns the scores of the model's own forward, with `[L, vocab]` logits of one sequence at a time."""
    logprobs = []
    entropies = []
    with _eager(model), _head_in_float32(model) if fp32_head else nullcontext():
        for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
            token_ids = batch.token_ids[start:end]
            logits = model(input_ids=token_ids.unsqueeze(0), use_cache=False).logits[0, :-1].float()
            log_p = (logits / batch.temperature[start:end][1:, None]).log_softmax(1)
            logprobs += [log_p.new_zeros(1), log_p.gather(1, token_ids[1:, None]).squeeze(1)]
            entropies += [log_p.new_zeros(1), -(log_p.exp() * log_p).sum(1)]
    return torch.cat(logprobs), torch.cat(entropies), None


def check_scores(
    model: PreTrainedModel,
    score: Callable[[PackedBatch, bool], Scores],
    dtype: torch.dtype,
    device: torch.device,
    largest: Callable[[float], float] = float,
    of_rank_0: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
) -> float:
    """Returns the difference between the scorer and the model's own logits, in nats.

    `score(batch, own)` runs the scorer, or the model's forward if `own`, in the engine. `largest` returns the
    maximum over the ranks, and `of_rank_0` rank 0's tensor. Raises ValueError if the model cannot be scored,
    would be scored wrongly, or differs between ranks.
    """
    name = type(model).__name__
    try:
        batch = check_batch(model).to(device)
        with torch.no_grad(), _small_limits(model):
            scored = score(batch, False)
            own = score(batch, True)
            changed = score(_with_other_tokens(batch), False) if dtype is torch.bfloat16 else scored
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{name} cannot be scored packed: {why}") from error
    found = largest(_difference(scored, own, dtype))
    if not found <= TOLERANCE[dtype] and not all(bool(torch.isfinite(scores).all()) for scores in own[:2]):
        raise ValueError(
            f"{name} gives log-probabilities that are NaN or infinite: its weights are; copy the model "
            "again, or choose another checkpoint"
        )
    if not found <= TOLERANCE[dtype]:
        what = "a token's" if dtype is torch.float32 else "on average a token's"
        raise ValueError(
            f"{name} would be scored wrongly: {what} packed log-probability or entropy is {found:.2g} nats "
            f"from that of the model's own logits, and {TOLERANCE[dtype]:g} is the most; the scorer leaves "
            "out a part of this model's forward pass, so choose another model"
        )
    leaked = largest(_difference(_of_unchanged(scored, batch), _of_unchanged(changed, batch), dtype))
    if not leaked <= LEAK[device.type]:
        raise ValueError(
            f"{name} would be scored wrongly: a score changes by {leaked:.2g} nats on average with the "
            "tokens of other sequences, which the scorer does not keep apart; choose another model"
        )
    first = (of_rank_0(scored[0]), of_rank_0(scored[1]), None)
    apart = largest(_difference(scored, first, dtype))
    if not apart <= BETWEEN_RANKS * TOLERANCE[dtype]:
        raise ValueError(
            f"{name} is not the same model on all ranks: they score the same tokens up to {apart:.2g} nats "
            "apart from rank 0; a part of it was not given to every rank, so use one rank, or another model"
        )
    return found


def _with_other_tokens(batch: PackedBatch) -> PackedBatch:
    """Returns the batch with the tokens of the CHANGED sequences in the opposite order."""
    token_ids = batch.token_ids.clone()
    bounds = batch.cu_seqlens.tolist()
    for sequence in CHANGED:
        rows = slice(bounds[sequence], bounds[sequence + 1])
        token_ids[rows] = token_ids[rows].flip(0)
    return replace(batch, token_ids=token_ids)


def _of_unchanged(scores: Scores, batch: PackedBatch) -> Scores:
    chosen = ~torch.isin(batch.sequence_ids, torch.tensor(CHANGED, device=batch.sequence_ids.device))
    return scores[0][chosen], scores[1][chosen], None


def _difference(scored: Scores, own: Scores, dtype: torch.dtype) -> float:
    """Returns the larger difference of log-probabilities or entropies, or infinity if it is NaN."""
    apart = [(a - b).abs() for a, b in zip(scored[:2], own[:2], strict=True)]
    found = [float(each.max() if dtype is torch.float32 else each.mean()) for each in apart]
    return max(math.inf if math.isnan(each) else each for each in found)


@contextmanager
def _small_limits(model: PreTrainedModel) -> Iterator[None]:
    """Reduces every window that is shorter than the context to WINDOW, and every bound of scores to BOUND."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or float("inf")
    holders = [*_configs(model), *model.modules()]
    found = []
    for holder in holders:
        for name, value in vars(holder).items():
            if name in WINDOWS and type(value) is int and WINDOW < value < context:
                found.append((holder, name, value, WINDOW))
            if name in BOUNDS and value is not None:
                found.append((holder, name, value, BOUND))
    try:
        for holder, name, _, small in found:
            setattr(holder, name, small)
        yield
    finally:
        for holder, name, value, _ in found:
            setattr(holder, name, value)


def _configs(model: PreTrainedModel) -> list[object]:
    every = [module.config for module in model.modules() if hasattr(module, "config")]
    return list({id(config): config for config in [*every, model.config.get_text_config()]}.values())


@contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    configs = [(config, config._attn_implementation) for config in _configs(model)]
    try:
        for config, _ in configs:
            config._attn_implementation = "eager"
        yield
    finally:
        for config, implementation in configs:
            config._attn_implementation = implementation


@contextmanager
def _head_in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Makes the model's head compute in float32, as the scorer's does."""
    head = model.get_output_embeddings()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        bias = None if head.bias is None else head.bias.float()
        return F.linear(hidden.float(), head.weight.float(), bias)

    kept = vars(head).get("forward")
    head.forward = forward
    try:
        yield
    finally:
        del head.forward
        if kept is not None:
            head.forward = kept
