"""Refuses requests that exceed the contract's limits or would crash the engine, before vLLM processes them.

vLLM's API has more fields than the contract, which vLLM validates itself.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, ValidationError

from contracts.errors import ContractError, ErrorCode
from contracts.inference import GenerationRequest
from contracts.limits import (
    MAX_N,
    MAX_PROMPTS,
    MAX_TEXT_CHARACTERS,
    MAX_TOP_LOGPROBS,
    MIN_TEMPERATURE,
    Limits,
    TemplateOptions,
)
from inference_adapters.message_parts import with_text
from inference_adapters.request_checks import (
    check_capability,
    check_commitments,
    check_context,
    check_draw_keys,
    check_draws,
    check_template_options,
    check_total,
)
from inference_adapters.text_checks import check_text, conversation_text

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

    from inference_adapters.vllm.engine import VllmEngine

KEYS = "draw_keys"
COMMITTED = "committed_as"
OF_CHOICES = (KEYS, COMMITTED)  # in `extra_args` of vLLM's sampling parameters: a value for each choice
TEXT_TOKENS = 16  # default of a text completion without max_tokens
LIMITS = Limits(min_temperature=0.01, max_temperature=2.0)  # vLLM silently raises a lower temperature


class SharedFields(GenerationRequest):
    """The contract's fields of a request. Additional fields are ignored here."""

    model_config = ConfigDict(extra="ignore")

    chat_template_kwargs: TemplateOptions | None = None  # of chats; vLLM refuses it on the other route


class Refusal(ContractError, ValueError):
    """A ContractError that vLLM's routes treat as a client error, because it is a ValueError."""


def checked_chat(body: dict[str, Any], engine: "VllmEngine") -> dict[str, Any]:
    """Returns the body of a chat completion. Raises ContractError if the contract refuses it."""
    context = engine.max_context()
    capabilities = engine.info().capabilities
    _check_shared(body, body.get("max_completion_tokens"), context, context, capabilities)
    if options := body.get("chat_template_kwargs"):
        check_capability("chat_template_kwargs", "template_options", capabilities)
        check_template_options(options)
    _check_likeliest("top_logprobs", body)
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise _invalid("top_logprobs", "it needs logprobs: true")
    for name in ("messages", "tools"):
        if not isinstance(body.get(name, []), list):
            raise _invalid(name, "this should be a list")
    messages = body.get("messages", [])
    conversation_text(messages, body.get("tools"), context)
    return body | {"messages": with_text(messages)}


def checked_text(body: dict[str, Any], engine: "VllmEngine") -> tuple[dict[str, Any], int]:
    """Returns the body of a text completion, and the number of its prompts.

    Raises ContractError if the contract refuses it.
    """
    context = engine.max_context()
    _check_likeliest("logprobs", body)
    prompt = body.get("prompt")
    if not prompt:
        raise _invalid("prompt", "it is empty")
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    prompts = prompt if several else [prompt]
    if len(prompts) > MAX_PROMPTS:
        raise _invalid("prompt", f"{len(prompts)} prompts; at most {MAX_PROMPTS}")
    _check_shared(body, None, context, TEXT_TOKENS, engine.info().capabilities, len(prompts))
    for one in prompts:
        if not one:
            raise _invalid("prompt", "one of them is empty")
        if isinstance(one, str):
            if len(one) > MAX_TEXT_CHARACTERS:
                raise _invalid("prompt", f"more than {MAX_TEXT_CHARACTERS} characters")
            check_text("prompt", one, context)
        elif isinstance(one, list):
            check_context(len(one), None, context)
            check_prompt_ids(one, engine.vocabulary())
        else:
            raise _invalid("prompt", "text or token ids, or a list of either")
    return body, len(prompts)


def _check_likeliest(name: str, body: dict[str, Any]) -> None:
    asked = body.get(name)
    if isinstance(asked, int) and asked > MAX_TOP_LOGPROBS:
        raise _invalid(name, f"{asked} is above {MAX_TOP_LOGPROBS}")


def _check_shared(
    body: dict[str, Any],
    max_completion_tokens: Any,
    context: int,
    default: int,
    capabilities: Sequence[str],
    prompts: int = 1,
) -> None:
    """Checks the fields that both routes share. `default`: length of a completion without max_tokens."""
    try:
        fields = SharedFields.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0]) if first["loc"] else "the body"
        raise _invalid(param, first["msg"]) from error
    if fields.temperature and not LIMITS.min_temperature <= fields.temperature <= LIMITS.max_temperature:
        raise _invalid(
            "temperature",
            f"{fields.temperature:g} is neither 0 nor between {LIMITS.min_temperature:g} and "
            f"{LIMITS.max_temperature:g}",
        )
    if isinstance(max_completion_tokens, int):
        check_context(0, max_completion_tokens, context)
    check_context(0, fields.max_tokens, context)
    given = fields.max_tokens or (max_completion_tokens if isinstance(max_completion_tokens, int) else None)
    check_total(fields.n * prompts, given or default)
    if fields.draw_keys:
        check_capability("draw_keys", "prescribed_draws", capabilities)
        check_draws(fields, body.get("logprobs") is True)
        check_draw_keys(fields, prompts)
    if fields.commitments:
        check_capability("commitments", "commitments", capabilities)
        check_commitments(fields.stop, body.get("logprobs") is True)
    if fields.stream_options and not fields.stream:
        raise _invalid("stream_options", "it needs stream: true")


def check_prompt_ids(token_ids: Any, vocabulary: int) -> None:
    """Raises ContractError for an id outside the embedding, which would crash the engine."""
    for token_id in token_ids:
        if not isinstance(token_id, int) or not 0 <= token_id < vocabulary:
            raise _invalid("prompt", f"token ids are numbers between 0 and {vocabulary - 1}")


def check_sampling(sampling: "SamplingParams") -> None:
    """Raises ContractError for parameters that no route may use."""
    for name in OF_CHOICES:
        if name in (sampling.extra_args or ()):
            raise _invalid("vllm_xargs", f"{name} is the server's own")
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        raise _invalid(
            "temperature", f"{sampling.temperature:g} is neither 0 nor at least {MIN_TEMPERATURE:g}"
        )
    if sampling.n > MAX_N:
        raise _invalid("n", f"{sampling.n} is above {MAX_N}")


def _invalid(param: str, why: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, f"{param}: {why}", param)
