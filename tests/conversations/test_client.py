"""What the client sends: token ids that the pipeline renders, or messages with pictures."""

import asyncio

import pytest

from pipelinerl.clients.completions import Sampling
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.domains.base import Answer
from tests.builders import completion
from tests.conversations.families import template_of

USER = {"role": "user", "content": "2 + 3?"}
THINKS = {"enable_thinking": True}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


class Unsent(LLMClient):
    """A client that returns the prompt that it would send."""

    async def _request(self, prompt, max_tokens, tools=None):
        return Answer(
            "5", completion(prompt if isinstance(prompt[0], int) else [1], [6], finish_reason="stop")
        )


def client_of(tmp_path, **options) -> LLMClient:
    conversations = template_of("qwen3", tmp_path)
    return Unsent(None, ServerPool(1), Sampling("m", 1.0, 8), conversations=conversations, **options)


def prompt_of(client: LLMClient, *messages: dict) -> list[int]:
    return asyncio.run(client.chat(list(messages))).completion.prompt_token_ids.tolist()


def test_a_problem_s_options_override_the_model_s(tmp_path):
    client = client_of(tmp_path, options={"enable_thinking": False})
    without, with_thoughts = (prompt_of(client.of_attempt("a", options=own), USER) for own in (None, THINKS))
    assert without[: len(with_thoughts)] == with_thoughts and len(without) > len(with_thoughts)


def test_pictures_are_the_server_s_to_render_in_the_first_turn_alone(tmp_path):
    client = client_of(tmp_path)
    assert prompt_of(client, PICTURE) == [1]
    first = asyncio.run(client.chat([USER]))
    with pytest.raises(ValueError, match="only the first turn of a conversation may have pictures"):
        asyncio.run(client.chat([PICTURE], after=first))
    with pytest.raises(ValueError, match="a prompt that the pipeline renders"):
        prompt_of(client.of_attempt("a", options=THINKS), PICTURE)
