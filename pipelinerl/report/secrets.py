"""Finds options of a configuration that may be secrets, by their names."""

import re
from typing import Any

LEFT_OUT = "…"
SECRET = re.compile(
    "key|token|secret|pass|pwd|auth|credential|bearer|header|cookie|dsn|connection", re.IGNORECASE
)
PUBLIC = {"max_tokens", "max_prompt_tokens", "segment_tokens", "micro_batch_tokens", "token_fields"}
URL_WITH_PASSWORD = re.compile(r"\w+://[^/\s]*@")


def may_be_secret(name: str) -> bool:
    return name not in PUBLIC and SECRET.search(name) is not None


def without_secrets(value: Any, name: str = "") -> Any:
    """Returns a part of a configuration in which LEFT_OUT replaces every text that may be a secret.

    Every text below an option with a suspicious name may be one.
    """
    match value:
        case dict():
            return {
                key: without_secrets(of, name if may_be_secret(name) else key) for key, of in value.items()
            }
        case list():
            return [without_secrets(of, name) for of in value]
        case str() if may_be_secret(name) or URL_WITH_PASSWORD.search(value):
            return LEFT_OUT
    return value
