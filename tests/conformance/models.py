"""Model directories for the kit. `python -m tests.conformance.models DIR` writes the scripted engine's."""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from inference_adapters.scripted import ALPHABET, EOS, ScriptedEngine
from tests.conformance.scripted_model import ScriptedConfig, ScriptedForCausalLM


def make_scripted_model(path: Path | str) -> str:
    """A directory that `trust_remote_code=True` loads."""
    ScriptedConfig.register_for_auto_class()
    ScriptedForCausalLM.register_for_auto_class("AutoModelForCausalLM")
    model = ScriptedForCausalLM(ScriptedConfig())
    model.load_state_dict(ScriptedEngine.initial_weights(0), strict=False)
    model.save_pretrained(path)
    _tokenizer().save_pretrained(path)
    return str(path)


def _tokenizer() -> PreTrainedTokenizerFast:
    """The scripted engine's characters, and its conversations, as Hugging Face writes them down."""
    vocabulary = {"<end>": EOS} | {character: i + 1 for i, character in enumerate(ALPHABET)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = (
        "{% if loud %}{{ 'loud: ' }}{% endif %}"
        "{% for m in messages %}{{ m['role'] ~ ': ' ~ m['content'] ~ '\\n' }}{% endfor %}{{ 'assistant: ' }}"
    )
    return fast


if __name__ == "__main__":
    print(make_scripted_model(sys.argv[1]))
