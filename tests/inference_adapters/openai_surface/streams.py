"""Streams, with their usage and with several choices."""

from openai.types.chat import ChatCompletionChunk

from tests.inference_adapters.openai_surface.client import MESSAGES, TOKENS, Surface, check, refused


@check
def a_stream_tells_its_usage_if_asked(server: Surface) -> None:
    asked = {"stream_options": {"include_usage": True}}
    for n in (1, 2):
        fields = {"n": n, "temperature": 1, "max_tokens": 5, "logprobs": True}
        chunks = server.raw_chat_stream(**fields, **asked)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        sampled = sum(len(choice.get("token_ids") or ()) for choice in choices)
        last = ChatCompletionChunk.model_validate(chunks[-1])
        assert last.choices == [] and last.usage.total_tokens == sampled + last.usage.prompt_tokens
        assert last.usage.completion_tokens == sampled
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    texts = server.text_stream(**asked)
    assert texts[-1].usage == server.text().usage and texts[-1].choices == []
    assert not any(chunk.get("usage") for chunk in server.raw_chat_stream())
    assert refused(server.chat, **asked).param == "stream_options"
    wrong = {"stream": True, "stream_options": {"include_usage": True, "more": 1}}
    assert refused(server.chat, **wrong).param == "stream_options"


@check
def the_clients_own_stream_takes_several_choices(server: Surface) -> None:
    """The client requires the first chunks in the order of the choices."""
    with server.client.chat.completions.stream(
        model=server.model, messages=MESSAGES, max_tokens=TOKENS, temperature=1, n=4
    ) as stream:
        for _ in stream:
            pass
        whole = stream.current_completion_snapshot
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert all(choice.finish_reason for choice in whole.choices)
