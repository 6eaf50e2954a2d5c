"""Tokenizes the prompts of a request, for `generation_routes`."""

import json
from collections import OrderedDict

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ChatCompletionRequest, TokenEngine
from contracts.limits import MAX_TEXT_CHARACTERS, MAX_TOKENS
from contracts.tool_calls import for_template
from inference_adapters.message_parts import with_text
from inference_adapters.text_checks import SHORT, check_text, conversation_text, tokenised

MOST_KEPT = 256  # conversations: at most a few megabytes
Prompt = str | list[int]


class ChatPrompts:
    """Tokenizes conversations. Short ones are cached, because the rollouts of a group share a prompt."""

    def __init__(self, engine: TokenEngine):
        self._engine = engine
        self._kept: OrderedDict[str, list[int]] = OrderedDict()  # by conversation and options, as text

    async def of(self, body: ChatCompletionRequest) -> list[int]:
        """Returns the token ids of a conversation. Raises ContractError if it is invalid."""
        text = conversation_text(body.messages, body.tools, self._engine.max_context())
        key = text + json.dumps(body.chat_template_kwargs or {})
        if key not in self._kept:
            found = await self._encoded(body, len(key))
            if len(key) > SHORT:
                return found
            self._kept[key] = found
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return list(self._kept[key])

    async def _encoded(self, body: ChatCompletionRequest, characters: int) -> list[int]:
        messages = with_text(body.messages)
        options = [body.chat_template_kwargs] if body.chat_template_kwargs else []

        def encode() -> list[int]:
            return self._engine.encode_chat(for_template(messages), body.tools, *options)

        try:
            return await tokenised(encode, characters=characters)
        except Exception as error:  # chat templates raise arbitrary errors to refuse a conversation
            raise ContractError(ErrorCode.INVALID_REQUEST, f"messages: {error!r}", "messages") from error


def prompts_of(given: Prompt | list[str] | list[list[int]]) -> list[Prompt]:
    """Returns the prompts of a text completion as a list."""
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    return given if several else [given]


async def text_prompts(prompts: list[Prompt], engine: TokenEngine) -> list[list[int]]:
    """Returns the token ids of each prompt. Raises ContractError, before tokenizing, if one is too long."""
    context = engine.max_context()
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    characters = sum([check_text("prompt", text, context) for text in texts])
    if characters > MAX_TEXT_CHARACTERS:
        raise _too_much(f"{characters} characters", MAX_TEXT_CHARACTERS)
    tokens = sum(len(prompt) for prompt in prompts if not isinstance(prompt, str))
    if tokens > MAX_TOKENS:
        raise _too_much(f"{tokens} token ids", MAX_TOKENS)
    if not texts:
        return prompts

    def encode() -> list[list[int]]:
        return [engine.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    return await tokenised(encode, characters=characters)


def _too_much(found: str, most: int) -> ContractError:
    why = f"prompt: {found} in all prompts; at most {most}"
    return ContractError(ErrorCode.INVALID_REQUEST, why, "prompt")
