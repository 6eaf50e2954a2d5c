"""Makes what a specification of `judging.verifiers` names."""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, TypeVar

from pipelinerl.judging.options import HOSTED, REUSED

Made = TypeVar("Made")


def made_of(name: str, spec: Mapping[str, Any], kind: type[Made]) -> Made:
    """Returns the object of a specification. Raises ValueError with the verifier's name."""
    options = {key: value for key, value in spec.items() if key not in ("_target_", REUSED, HOSTED)}
    try:
        verifier = resolve_name(spec["_target_"])(**options)
        if not isinstance(verifier, kind):
            raise TypeError(f"it makes no {kind.__name__}")
        return verifier
    except Exception as error:
        raise ValueError(f"verifier {name} ({spec['_target_']}): {type(error).__name__}: {error}") from error
