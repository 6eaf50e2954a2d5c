"""Model directories for the kit. `python -m tests.conformance.models DIR` writes the scripted engine's."""

import sys
from pathlib import Path

from inference_adapters.scripted import ScriptedEngine
from tests.conformance.scripted_model import ScriptedConfig, ScriptedForCausalLM


def make_scripted_model(path: Path | str) -> str:
    """A directory that `trust_remote_code=True` loads."""
    ScriptedConfig.register_for_auto_class()
    ScriptedForCausalLM.register_for_auto_class("AutoModelForCausalLM")
    model = ScriptedForCausalLM(ScriptedConfig())
    model.load_state_dict(ScriptedEngine.initial_weights(0), strict=False)
    model.save_pretrained(path)
    return str(path)


if __name__ == "__main__":
    print(make_scripted_model(sys.argv[1]))
