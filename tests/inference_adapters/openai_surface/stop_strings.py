"""Stop strings end a completion at the token that completes them."""

from tests.inference_adapters.openai_surface.client import Surface, check


@check
def a_stop_string_ends_the_completion(server: Surface) -> None:
    """Checks that it ends at the token that completes the string.

    The ids include that token; the text ends before the string.
    """
    free = server.chat(logprobs=True).choices[0]
    text = free.message.content
    pieces = [token.token for token in free.logprobs.content]
    for stop in {text[3:5], text[0], text[-1], text[2:9]}:
        answer = server.chat(logprobs=True, stop=[stop, "never said"])
        choice = answer.choices[0]
        kept = next(i for i in range(1, len(pieces) + 1) if stop in "".join(pieces[:i]))
        assert choice.message.content == text[: text.index(stop)], (stop, text)
        assert choice.token_ids == free.token_ids[:kept] and choice.finish_reason == "stop"
        assert len(choice.logprobs.content) == kept == answer.usage.completion_tokens
        assert choice.weight_versions[-1]["end"] == kept
        chunks = [c for chunk in server.chat_stream(logprobs=True, stop=stop) for c in chunk.choices]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content
        assert [i for chunk in chunks for i in getattr(chunk, "token_ids", None) or ()] == choice.token_ids
        assert chunks[-1].finish_reason == "stop" and chunks[-1].weight_versions == choice.weight_versions
        assert (
            server.text(prompt=answer.prompt_token_ids, stop=stop).choices[0].text == text[: text.index(stop)]
        )
    unstopped = server.chat(logprobs=True, stop=["never said"]).choices[0]
    assert (unstopped.token_ids, unstopped.message.content) == (free.token_ids, text)
    assert unstopped.finish_reason == free.finish_reason


@check
def of_several_stop_strings_the_first_one_counts(server: Surface) -> None:
    text = server.text().choices[0].text
    stops = [text[6:8], text[2:4], "never said", "nor this", "nor that"]
    first = min(text.index(stop) + 2 for stop in stops[:2])
    assert server.text(stop=stops).choices[0].text == text[: first - 2]
