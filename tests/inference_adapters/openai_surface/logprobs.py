"""Checks the most likely tokens of each position, and the two forms of log-probabilities."""

import math

import pytest

from tests.inference_adapters.openai_surface.client import Surface, check, refused


@check
def the_likeliest_tokens_come_with_each(server: Surface) -> None:
    for fields in ({}, {"temperature": 1.7, "max_tokens": 40}):
        content = server.chat(logprobs=True, top_logprobs=3, **fields).choices[0].logprobs.content
        for token in content:
            tops = [top.logprob for top in token.top_logprobs]
            assert len(tops) == 3 and tops == sorted(tops, reverse=True) and tops[0] <= 1e-4
            assert token.logprob <= tops[0] + 1e-4
            if token.token in [top.token for top in token.top_logprobs]:
                (same,) = [top.logprob for top in token.top_logprobs if top.token == token.token]
                assert same == pytest.approx(token.logprob, abs=1e-4)
            else:
                assert token.logprob <= tops[-1] + 1e-4
            assert fields or token.token == token.top_logprobs[0].token
    streamed = [c for chunk in server.chat_stream(logprobs=True, top_logprobs=3) for c in chunk.choices]
    tokens = [token for chunk in streamed if chunk.logprobs for token in chunk.logprobs.content or ()]
    assert all(len(token.top_logprobs) == 3 for token in tokens) and len(tokens) > 3
    none = server.chat(logprobs=True, top_logprobs=0).choices[0].logprobs.content
    assert all(token.top_logprobs == [] for token in none)
    assert refused(server.chat, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refused(server.chat, top_logprobs=2).param == "top_logprobs"


@check
def what_truncation_cuts_is_not_among_the_likeliest(server: Surface) -> None:
    if "truncation" in server.contract["capabilities"]:
        asked = {"logprobs": True, "top_logprobs": 5, "top_k": 2, "temperature": 1}
        for token in server.chat(**asked).choices[0].logprobs.content:
            masses = [math.exp(top.logprob) for top in token.top_logprobs]
            assert len(masses) == 2 and sum(masses) == pytest.approx(1, abs=1e-4)


@check
def the_text_route_has_the_classic_form_too(server: Surface) -> None:
    for asked in (0, 2):
        choice = server.text(logprobs=asked).choices[0]
        form = choice.logprobs
        assert "".join(form.tokens) == choice.text
        assert form.text_offset == [len("".join(form.tokens[:i])) for i in range(len(form.tokens))]
        for token, logprob, tops in zip(form.tokens, form.token_logprobs, form.top_logprobs, strict=True):
            assert tops[token] == pytest.approx(logprob, abs=1e-4)
            assert max(1, asked) <= len(tops) <= asked + 1
        chunks = [
            c.logprobs for chunk in server.text_stream(logprobs=asked) for c in chunk.choices if c.logprobs
        ]
        for name in ("tokens", "text_offset"):
            assert [value for chunk in chunks for value in getattr(chunk, name)] == getattr(form, name)
    assert refused(server.text, logprobs=21).param == "logprobs"
    ours = server.raw_text(logprobs=True)["choices"][0]
    assert len(ours["logprobs"]["content"]) == len(ours["token_ids"])
