"""Scores of whole sequences, with logits of only a few tokens at a time."""

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from inference_adapters.transformers import scoring

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2,
}  # fmt: skip
CAPPED = {"final_logit_softcapping": 2.0, "sliding_window": 16}
LENGTHS = [90, 1, 40, 2, 88, 41, 5, 4, 2, 3]


def qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()


def gemma2() -> PreTrainedModel:
    """Its logits are capped after the head, and a layer of two sees the last tokens alone."""
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, **CAPPED, attn_implementation="eager")).eval()


@pytest.mark.parametrize("made", [qwen2, gemma2])
def test_scores_are_those_of_one_plain_pass_and_no_logits_of_a_whole_sequence_exist(made, monkeypatch):
    torch.manual_seed(0)
    model = made()
    sequences = [torch.randint(VOCABULARY, (length,)).tolist() for length in LENGTHS]
    expected = []
    for ids in sequences:
        with torch.no_grad():
            log_p = (model(torch.tensor([ids])).logits[0, :-1] / 0.8).log_softmax(-1)
        expected.append(log_p.gather(1, torch.tensor(ids[1:], dtype=torch.long)[:, None])[:, 0].tolist())

    monkeypatch.setattr(scoring, "LOGITS_TOKENS", 8)
    with_logits, passed = [], []
    model.lm_head.register_forward_hook(lambda _, __, logits: with_logits.append(logits[..., 0].numel()))
    model.get_decoder().register_forward_pre_hook(
        lambda _, __, given: passed.append(given["input_ids"].numel()), with_kwargs=True
    )
    scored = scoring.score(model, sequences, temperature=0.8, batch_tokens=200, top=VOCABULARY)
    assert [len(one.logprobs) for one in scored] == [length - 1 for length in LENGTHS]
    for one, ids, plain in zip(scored, sequences, expected, strict=True):
        assert one.logprobs == pytest.approx(plain, abs=1e-4)
        chosen = [dict(pairs)[i] for pairs, i in zip(one.top, ids[1:], strict=True)]
        assert chosen == pytest.approx(plain, abs=1e-4)
    assert max(with_logits) <= 8
    assert sum(passed) < 1.5 * sum(LENGTHS)  # little padding, and every token is passed once


def test_many_short_sequences_have_no_more_logits_at_a_time(monkeypatch):
    monkeypatch.setattr(scoring, "LOGITS_TOKENS", 8)
    model, with_logits = qwen2(), []
    model.lm_head.register_forward_hook(lambda _, __, logits: with_logits.append(logits[..., 0].numel()))
    scored = scoring.score(model, [[1, 2]] * 30 + [[1]], temperature=1.0, batch_tokens=200)
    assert [len(one.logprobs) for one in scored] == [1] * 30 + [0]
    assert max(with_logits) == 8


def test_it_stops_once_nobody_waits(monkeypatch):
    monkeypatch.setattr(scoring, "LOGITS_TOKENS", 8)
    model, passed = qwen2(), []
    model.get_decoder().register_forward_pre_hook(lambda *_: passed.append(1))
    with pytest.raises(scoring.StoppedError):
        scoring.score(model, [[1, 2] * 20], 1.0, batch_tokens=200, stopped=lambda: len(passed) == 2)
    assert len(passed) == 2
