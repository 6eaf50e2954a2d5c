"""Refuses images, audio and video on all routes of vLLM, before anything is downloaded.

vLLM downloads media through a connector, from any host; `__main__` selects the connector of this module.
Uploaded media do not use a connector; `EngineClient` refuses them by `check_tokens_alone`.
"""

from typing import Any, NoReturn

from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

from contracts.errors import ErrorCode
from inference_adapters.vllm.request_checks import Refusal

CONNECTOR = "pipelinerl"  # name of the connector, for VLLM_MEDIA_CONNECTOR
WITH_MEDIA = ("multimodal", "enc_dec")  # types of vLLM's prompts that have more than tokens


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
class NoMedia(MediaConnector):
    """A connector whose methods raise Refusal."""

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
