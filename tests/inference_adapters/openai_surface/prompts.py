"""Several prompts in one request."""

from openai.types import Completion

from tests.inference_adapters.openai_surface.client import Surface, check, refused


@check
def several_prompts_are_answered_like_each_alone(server: Surface) -> None:
    ids = [[5, 6, 7], [20, 21], [40, 41, 42, 43]]
    for prompts in (ids, ["1 + 1", "2 * 3 =", "7"]):
        alone = [server.raw_text(prompt=prompt, logprobs=True) for prompt in prompts]
        answer = server.raw_text(prompt=prompts, logprobs=True)
        Completion.model_validate(server.raw_text(prompt=prompts))
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        for choice, one in zip(answer["choices"], alone, strict=True):
            assert choice["prompt_token_ids"] == one["prompt_token_ids"]
            assert choice["token_ids"] == one["choices"][0]["token_ids"]
            assert choice["text"] == one["choices"][0]["text"]
        assert "prompt_token_ids" not in answer
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert answer["usage"][name] == sum(one["usage"][name] for one in alone)
        streamed = [choice for chunk in server.text_stream(prompt=prompts) for choice in chunk.choices]
        for index, one in enumerate(alone):
            text = "".join(choice.text for choice in streamed if choice.index == index)
            assert text == one["choices"][0]["text"]
    many = server.raw_text(prompt=ids, n=2, temperature=1, logprobs=True)
    prompts = [choice["prompt_token_ids"] for choice in many["choices"]]
    assert prompts == [prompt for prompt in ids for _ in range(2)]
    assert many["usage"]["prompt_tokens"] == sum(map(len, ids))
    for wrong in ([], [[]], ["1", ""], ["1", [5]], ["1"] * 1025, [[5], [-1]]):
        assert refused(server.text, prompt=wrong).code == "invalid_request", wrong
    never_taken = refused(server.text, prompt=[[5]] * 1024, n=9, max_tokens=1, temperature=1)
    assert (never_taken.code, never_taken.param) == ("invalid_request", "prompt")
