"""Refuses pictures, sound and video on every route of vLLM's, before anything is fetched.

vLLM loads what a part of a message names through a connector, from any host; `__main__` names this one. What
a request uploads does not pass a connector: `EngineClient` refuses it.
"""

from typing import Any, NoReturn

from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

from contracts.errors import ErrorCode
from inference_adapters.vllm.request_checks import Refusal

CONNECTOR = "pipelinerl"  # its name, the value of VLLM_MEDIA_CONNECTOR
WITH_MEDIA = ("multimodal", "enc_dec")  # types of vLLM's prompts that are more than tokens


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
class NoMedia(MediaConnector):
    """A connector that loads nothing. Its methods raise Refusal."""

    def load_from_url(self, url: str, *args: Any, **options: Any) -> NoReturn:
        _refuse()

    async def load_from_url_async(self, url: str, *args: Any, **options: Any) -> NoReturn:
        _refuse()


def check_tokens_alone(prompt: dict[str, Any]) -> None:
    """Raises Refusal for a prompt that has more than tokens."""
    if prompt.get("type") in WITH_MEDIA:
        _refuse()


def _refuse() -> NoReturn:
    why = "messages: this server takes text alone, no pictures, sound or video"
    raise Refusal(ErrorCode.UNSUPPORTED_PARAMETER, why, "messages")
