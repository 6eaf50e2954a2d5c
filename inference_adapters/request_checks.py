"""Validates generation requests and converts them to sampling parameters, for `generation_routes`.

A parameter that the engine does not support is refused, never ignored. Its neutral value (top_p 1, top_k 0
or -1, an empty list) is always accepted.
"""

from collections.abc import Iterable, Sequence

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    SamplingParameters,
)
from contracts.limits import MAX_TOKENS_OF_CHOICES
from contracts.template_options import is_option


def sampling_parameters(
    request: GenerationRequest, max_tokens: int | None, prompt_length: int, max_context: int, first: int = 0
) -> list[SamplingParameters]:
    """Returns the parameters of each of the `n` completions. The i-th is sampled with seed + i.

    first: index, among all choices, of the first of these.
    Raises ContractError if the prompt is empty or does not fit into `max_context` tokens.
    """
    if prompt_length == 0:
        raise ContractError(ErrorCode.INVALID_REQUEST, "the prompt is empty", "prompt")
    check_context(prompt_length, max_tokens, max_context)
    available = max_context - prompt_length
    likeliest = number_of_likeliest(request)
    check_total(request.n, max_tokens or available)
    return [
        SamplingParameters(
            max_tokens=max_tokens or available,
            temperature=request.temperature,
            stop_token_ids=tuple(request.stop_token_ids),
            top_p=None if request.top_p == 1 else request.top_p,
            top_k=None if request.top_k in (0, -1) else request.top_k,
            seed=None if request.seed is None else request.seed + choice,
            draw_key=bytes.fromhex(request.draw_keys[first + choice]) if request.draw_keys else None,
            top_logprobs=likeliest,
            commitments=request.commitments,
        )
        for choice in range(request.n)
    ]


def check_context(prompt_length: int, max_tokens: int | None, max_context: int) -> None:
    """Raises ContractError unless the prompt and its completion fit into the context."""
    if prompt_length + (max_tokens or 1) > max_context:
        raise ContractError(
            ErrorCode.CONTEXT_LENGTH,
            f"prompt ({prompt_length} tokens) and max_tokens ({max_tokens}) exceed the context of "
            f"{max_context} tokens",
            None if max_tokens is None else "max_tokens",
        )


def check_total(n: int, max_tokens: int) -> None:
    """Raises ContractError if `n` choices of `max_tokens` exceed the contract's limit."""
    if n * max_tokens > MAX_TOKENS_OF_CHOICES:
        raise ContractError(
            ErrorCode.INVALID_REQUEST,
            f"n: {n} choices of up to {max_tokens} tokens; all together may have {MAX_TOKENS_OF_CHOICES}",
            "n",
        )


def number_of_likeliest(request: GenerationRequest) -> int:
    """Returns the number of most likely tokens that are requested with each sampled token."""
    if isinstance(request, ChatCompletionRequest):
        return request.top_logprobs or 0
    asked = request.logprobs if isinstance(request, CompletionRequest) else None
    return 0 if isinstance(asked, bool) else asked or 0


def check_options(request: GenerationRequest) -> None:
    """Raises ContractError for an option without another field that it needs."""
    if request.stream_options and not request.stream:
        raise _without("stream_options", "stream: true")
    if request.stream_options and request.stream_options.continuous_usage_stats:
        why = "stream_options.continuous_usage_stats: this server tells the usage at the end"
        raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, why, "stream_options")
    if isinstance(request, ChatCompletionRequest) and request.top_logprobs and not request.logprobs:
        raise _without("top_logprobs", "logprobs: true")
    if request.arrays and not (_has_logprobs(request) and number_of_likeliest(request) == 0):
        raise _without("arrays", "logprobs: true, without alternatives")
    if request.as_completed and request.stream:
        raise _without("as_completed", "stream: false")
    if request.draw_keys:
        check_draws(request, _has_logprobs(request))
    if request.commitments:
        check_commitments(request.stop, _has_logprobs(request))
    if isinstance(request, ChatCompletionRequest):
        check_template_options(request.chat_template_kwargs or ())


def check_draws(request: GenerationRequest, has_logprobs: bool) -> None:
    """Raises ContractError unless the draw keys alone say which tokens are sampled."""
    if not has_logprobs:
        raise _without("draw_keys", "logprobs: true")
    others = {
        "seed": request.seed is not None,
        "top_p": request.top_p not in (None, 1),
        "top_k": request.top_k not in (None, 0, -1),
        "temperature": request.temperature == 0,
    }
    for name, is_given in others.items():
        if is_given:
            why = f"draw_keys: {name}={getattr(request, name)} would sample other tokens"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "draw_keys")


def check_commitments(stop: object, has_logprobs: bool) -> None:
    """Raises ContractError for a request whose tokens cannot be committed to."""
    if not has_logprobs:
        raise _without("commitments", "logprobs: true, and not a number")
    if stop:
        raise _without("commitments", "a request without stop strings")


def check_draw_keys(request: GenerationRequest, prompts: int = 1) -> None:
    """Raises ContractError unless each choice has a draw key, or none has."""
    if request.draw_keys and len(request.draw_keys) != request.n * prompts:
        why = f"draw_keys: {len(request.draw_keys)} keys of {request.n * prompts} choices"
        raise ContractError(ErrorCode.INVALID_REQUEST, why, "draw_keys")


def check_template_options(names: Iterable[str]) -> None:
    """Raises ContractError for an option of the chat template that rendering sets itself."""
    for name in names:
        if not is_option(name):
            why = f"chat_template_kwargs: {name} is set by the rendering itself"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "chat_template_kwargs")


def _has_logprobs(request: GenerationRequest) -> bool:
    return isinstance(request, ChatCompletionRequest | CompletionRequest) and request.logprobs is True


def _without(param: str, needed: str) -> ContractError:
    return ContractError(ErrorCode.INVALID_REQUEST, f"{param}: it needs {needed}", param)


def check_capabilities(request: GenerationRequest, capabilities: Sequence[str]) -> None:
    """Raises ContractError if the request uses a capability that the engine does not declare."""
    chat = isinstance(request, ChatCompletionRequest)
    tools = request.tools if isinstance(request, ChatCompletionRequest) else None
    options = request.chat_template_kwargs if isinstance(request, ChatCompletionRequest) else None
    asked = {
        "top_p": ("truncation", request.top_p not in (None, 1)),
        "top_k": ("truncation", request.top_k not in (None, 0, -1)),
        "seed": ("seed", request.seed is not None),
        "draw_keys": ("prescribed_draws", request.draw_keys is not None),
        "commitments": ("commitments", request.commitments),
        "stop": ("stop_strings", bool(request.stop)),
        "tools": ("tools", bool(tools)),
        "chat_template_kwargs": ("template_options", bool(options)),
        "stream": ("stream", request.stream),
        "arrays": ("arrays", request.arrays),
        "as_completed": ("as_completed", request.as_completed),
        "top_logprobs" if chat else "logprobs": ("top_logprobs", number_of_likeliest(request) > 0),
    }
    for parameter, (capability, is_asked) in asked.items():
        if is_asked:
            check_capability(parameter, capability, capabilities)


def check_capability(parameter: str, capability: str, capabilities: Sequence[str]) -> None:
    """Raises ContractError, for a parameter that needs it, unless the engine declares this capability."""
    if capability not in capabilities:
        why = f"{parameter}: this server does not declare the capability {capability}"
        raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, why, parameter)


def calls_tools(request: ChatCompletionRequest) -> bool:
    """Returns True if calls in the sampled text are returned as tool calls.

    Raises ContractError if `tool_choice` forces a call.
    """
    if request.tool_choice not in (None, "auto", "none"):
        raise ContractError(
            ErrorCode.UNSUPPORTED_PARAMETER,
            f"tool_choice {request.tool_choice!r}: this server takes auto and none; it cannot force a call",
            "tool_choice",
        )
    return bool(request.tools) and request.tool_choice != "none"
