"""Messages whose content is a list of parts."""

from tests.inference_adapters.openai_surface.client import MESSAGES, Surface, check, refused


@check
def text_parts_are_one_text(server: Surface) -> None:
    for role in ("user", "system", "assistant"):
        parts = [{"type": "text", "text": "1 +"}, {"type": "text", "text": "1 =", "cache_control": {}}]
        in_parts = server.chat(messages=[{"role": role, "content": parts}, *MESSAGES], logprobs=True)
        as_text = server.chat(messages=[{"role": role, "content": "1 +\n1 ="}, *MESSAGES], logprobs=True)
        assert in_parts.prompt_token_ids == as_text.prompt_token_ids
        assert in_parts.choices[0].token_ids == as_text.choices[0].token_ids


@check
def other_parts_are_refused_by_name(server: Surface) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for part in (image, {"type": "input_audio", "input_audio": {}}, {"type": "file", "file": {}}):
        content = [{"type": "text", "text": "1"}, part]
        error = refused(server.chat, messages=[{"role": "user", "content": content}])
        assert (error.code, error.param) == ("unsupported_parameter", "messages[0].content[1]")
        assert part["type"] in error.message
    for part in ({"type": "text"}, {"text": "1"}, {"type": "text", "text": 1}):
        error = refused(server.chat, messages=[{"role": "user", "content": [part]}])
        assert (error.code, error.param) == ("invalid_request", "messages[0].content[0]")
